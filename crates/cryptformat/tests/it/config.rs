//! Configurations: creating, opening, changing, and everything that is refused.
#![allow(clippy::unwrap_used, clippy::panic)]

use cryptformat::{
    Argon2id, Config, ConfigError, Flags, Kdf, KeySlot, Keys, Limits, MasterKey, NameFlags, NewVolume, Passphrase,
    Scrypt,
};

/// The cheapest parameters.
const SCRYPT: Kdf = Kdf::Scrypt(Scrypt { log_n: 10, r: 8, p: 1 });
const ARGON2: Kdf = Kdf::Argon2id(Argon2id { memory_kib: 8 << 10, passes: 1, lanes: 1 });

fn passphrase<'a>(text: &'a str, label: &'a str, kdf: Kdf) -> Passphrase<'a> {
    Passphrase { bytes: text.as_bytes(), kdf, label }
}

fn create(flags: Flags, kdf: Kdf) -> (Config, MasterKey) {
    let new = NewVolume { creator: "test 1", flags, passphrase: passphrase("first", "one", kdf) };
    Config::create(&new, Limits::default()).unwrap()
}

fn with_slots() -> Flags {
    Flags { key_slots: true, ..Flags::default() }
}

fn opens(config: &Config, text: &str) -> Result<usize, ConfigError> {
    config.unlock(text.as_bytes(), Limits::default()).map(|unlocked| unlocked.slot)
}

fn text(config: &Config) -> String {
    String::from_utf8(config.to_json().unwrap()).unwrap()
}

#[test]
fn a_new_configuration_opens_with_its_passphrase_only() {
    for (flags, kdf) in [
        (Flags::default(), SCRYPT),
        (Flags { hkdf: false, ..Flags::default() }, SCRYPT),
        (with_slots(), SCRYPT),
        (with_slots(), ARGON2),
    ] {
        let (config, master) = create(flags, kdf);
        let read = Config::parse(&config.to_json().unwrap()).unwrap();
        assert_eq!(read, config);
        let unlocked = read.unlock(b"first", Limits::default()).unwrap();
        assert_eq!(unlocked.master.as_bytes(), master.as_bytes());
        assert_eq!(opens(&read, "First"), Err(ConfigError::Passphrase));
        assert_eq!(opens(&read, ""), Err(ConfigError::Passphrase));
        let (_, other) = create(flags, kdf);
        assert_ne!(other.as_bytes(), master.as_bytes());
    }
}

#[test]
fn the_layout_is_the_one_of_gocryptfs() {
    let names = NameFlags { long_name_max: 100, ..NameFlags::default() };
    let (config, _) = create(Flags { names: Some(names), ..Flags::default() }, SCRYPT);
    let mut lines: Vec<String> = text(&config).lines().map(str::to_owned).collect();
    for (line, start) in [(2, "\t\"EncryptedKey\": \""), (4, "\t\t\"Salt\": \"")] {
        assert!(lines[line].starts_with(start), "{}", lines[line]);
        lines.remove(line);
        lines.insert(line, start.to_owned());
    }
    let expected = "{\n\t\"Creator\": \"test 1\",\n\t\"EncryptedKey\": \"\n\t\"ScryptObject\": {\n\t\t\"Salt\": \"\n\
                    \t\t\"N\": 1024,\n\t\t\"R\": 8,\n\t\t\"P\": 1,\n\t\t\"KeyLen\": 32\n\t},\n\t\"Version\": 2,\n\
                    \t\"FeatureFlags\": [\n\t\t\"HKDF\",\n\t\t\"GCMIV128\",\n\t\t\"DirIV\",\n\t\t\"LongNameMax\",\n\
                    \t\t\"EMENames\",\n\t\t\"LongNames\",\n\t\t\"Raw64\"\n\t],\n\t\"LongNameMax\": 100\n}";
    assert_eq!(lines.join("\n"), expected);
    assert!(text(&config).ends_with("}\n"));
}

#[test]
fn a_passphrase_of_a_plain_volume_is_changed() {
    let (mut config, master) = create(Flags::default(), SCRYPT);
    config.change_slot(&master, 0, &passphrase("second", "", SCRYPT), Limits::default()).unwrap();
    let read = Config::parse(&config.to_json().unwrap()).unwrap();
    assert_eq!(opens(&read, "first"), Err(ConfigError::Passphrase));
    assert_eq!(opens(&read, "second"), Ok(0));
    let argon2 = passphrase("second", "", ARGON2);
    assert_eq!(config.change_slot(&master, 0, &argon2, Limits::default()), Err(ConfigError::Argon2id));
    let empty = passphrase("", "", SCRYPT);
    assert_eq!(config.change_slot(&master, 0, &empty, Limits::default()), Err(ConfigError::EmptyPassphrase));
    assert_eq!(config.add_slot(&master, &argon2, Limits::default()), Err(ConfigError::OnePassphrase));
    assert_eq!(config.remove_slot(&master, 0), Err(ConfigError::OnePassphrase));
    assert_eq!(config, read);
}

#[test]
fn slots_are_added_changed_and_removed() {
    let (mut config, master) = create(with_slots(), ARGON2);
    config.add_slot(&master, &passphrase("second", "two", SCRYPT), Limits::default()).unwrap();
    config.add_slot(&master, &passphrase("third", "three", ARGON2), Limits::default()).unwrap();
    let mut config = Config::parse(&config.to_json().unwrap()).unwrap();
    assert_eq!((opens(&config, "first"), opens(&config, "second"), opens(&config, "third")), (Ok(0), Ok(1), Ok(2)));
    assert_eq!(config.slots().iter().map(KeySlot::label).collect::<Vec<_>>(), ["one", "two", "three"]);
    assert_eq!(config.slots().iter().map(KeySlot::kdf).collect::<Vec<_>>(), [ARGON2, SCRYPT, ARGON2]);
    let before = config.clone();
    let limits = Limits::default();
    assert_eq!(config.add_slot(&master, &passphrase("x", "two", SCRYPT), limits), Err(ConfigError::LabelInUse));
    assert!(config.add_slot(&master, &passphrase("x", "a\nb", SCRYPT), limits).is_err());
    assert!(config.add_slot(&master, &passphrase("x", "", SCRYPT), limits).is_err());
    assert_eq!(config.add_slot(&master, &passphrase("", "four", SCRYPT), limits), Err(ConfigError::EmptyPassphrase));
    assert_eq!(config.remove_slot(&master, 3), Err(ConfigError::NoSlot));
    assert_eq!(config.change_slot(&master, 3, &passphrase("x", "", SCRYPT), limits), Err(ConfigError::NoSlot));
    let other = MasterKey::from_bytes(&[1; 32]);
    assert_eq!(config.remove_slot(&other, 0), Err(ConfigError::Tampered), "not with another master key");
    assert_eq!(config, before);

    config.change_slot(&master, 1, &passphrase("changed", "ignored", ARGON2), limits).unwrap();
    config.remove_slot(&master, config.slot_of("one").unwrap()).unwrap();
    let mut config = Config::parse(&config.to_json().unwrap()).unwrap();
    assert_eq!(config.slots().iter().map(KeySlot::label).collect::<Vec<_>>(), ["two", "three"]);
    assert_eq!(
        (opens(&config, "first"), opens(&config, "second")),
        (Err(ConfigError::Passphrase), Err(ConfigError::Passphrase))
    );
    assert_eq!((opens(&config, "changed"), opens(&config, "third")), (Ok(0), Ok(1)));
    config.remove_slot(&master, 0).unwrap();
    assert_eq!(config.remove_slot(&master, 0), Err(ConfigError::LastSlot));
    for number in 1..8 {
        config.add_slot(&master, &passphrase("x", &number.to_string(), SCRYPT), limits).unwrap();
    }
    assert_eq!(config.add_slot(&master, &passphrase("x", "nine", SCRYPT), limits), Err(ConfigError::SlotsFull));
    assert_eq!(Config::parse(&config.to_json().unwrap()).unwrap().slots().len(), 8);
}

/// Nobody without the key can change a configuration with key slots: each altered bit is refused
/// when the file is parsed or opened.
#[test]
fn every_altered_bit_of_a_configuration_with_slots_is_detected() {
    let (config, _) = create(with_slots(), SCRYPT);
    let bytes = config.to_json().unwrap();
    for bit in 0..bytes.len() * 8 {
        let mut altered = bytes.clone();
        altered[bit / 8] ^= 1 << (bit % 8);
        let Ok(read) = Config::parse(&altered) else { continue };
        // White space outside of values is not authenticated, and has no meaning.
        if read != config {
            assert!(opens(&read, "first").is_err(), "{}", String::from_utf8_lossy(&altered));
        }
    }
}

/// Without key slots, what can be altered without notice is the creator's name, and features, as
/// with gocryptfs. The keys stay those of the passphrase.
#[test]
fn altered_bits_of_a_plain_configuration() {
    let (config, master) = create(Flags::default(), SCRYPT);
    let bytes = config.to_json().unwrap();
    for bit in 0..bytes.len() * 8 {
        let mut altered = bytes.clone();
        altered[bit / 8] ^= 1 << (bit % 8);
        let Ok(read) = Config::parse(&altered) else { continue };
        match read.unlock(b"first", Limits::default()) {
            Ok(unlocked) => {
                assert_eq!(unlocked.master.as_bytes(), master.as_bytes());
                assert_eq!(read.flags(), config.flags());
                assert!(read.slots() == config.slots());
            }
            Err(error) => assert!(matches!(error, ConfigError::Passphrase | ConfigError::Memory { .. }), "{error}"),
        }
    }
}

#[test]
fn a_removed_feature_is_detected() {
    let names = NameFlags { long_name_max: 100, ..NameFlags::default() };
    let (config, _) = create(Flags { names: Some(names), ..with_slots() }, SCRYPT);
    let json = text(&config);
    for (from, to) in [
        ("\t\t\"DirIV\",\n", ""),
        ("\t\t\"LongNames\",\n", ""),
        ("\"LongNameMax\": 100", "\"LongNameMax\": 101"),
        ("test 1", "test 2"),
        ("\"HKDF\",\n\t\t\"GCMIV128\"", "\"GCMIV128\",\n\t\t\"HKDF\""),
    ] {
        assert!(json.contains(from), "{json}");
        let altered = Config::parse(json.replace(from, to).as_bytes()).unwrap();
        assert_eq!(opens(&altered, "first"), Err(ConfigError::Tampered), "{from}");
    }
    // A second slot from another volume.
    let (other, _) = create(with_slots(), ARGON2);
    let slots = |json: &str| json[json.find("\"KeySlots\"").unwrap()..json.find("\t\"ConfigMac\"").unwrap()].to_owned();
    let altered = Config::parse(json.replace(&slots(&json), &slots(&text(&other))).as_bytes()).unwrap();
    assert_eq!(opens(&altered, "first"), Err(ConfigError::Tampered));
}

/// The wrapped key of a slot can't become the one of a configuration without authentication.
#[test]
fn a_slot_is_not_the_key_of_a_plain_configuration() {
    let (config, _) = create(with_slots(), SCRYPT);
    let (plain, _) = create(Flags::default(), SCRYPT);
    let field = |json: &str, name: &str| {
        let start = json.find(&format!("\"{name}\": \"")).unwrap() + name.len() + 5;
        json[start..].split('"').next().unwrap().to_owned()
    };
    let (json, mut forged) = (text(&config), text(&plain));
    for name in ["Salt", "EncryptedKey"] {
        forged = forged.replace(&field(&forged, name), &field(&json, name));
    }
    assert_eq!(opens(&Config::parse(forged.as_bytes()).unwrap(), "first"), Err(ConfigError::Passphrase));
}

#[test]
fn hostile_files_are_refused() {
    let (config, _) = create(Flags::default(), SCRYPT);
    let json = text(&config);
    let refused = |from: &str, to: &str| {
        assert!(json.contains(from), "{from}");
        Config::parse(json.replacen(from, to, 1).as_bytes()).err().unwrap_or_else(|| panic!("accepted: {to}"))
    };
    assert_eq!(Config::parse(&vec![b' '; 65_537]), Err(ConfigError::TooLarge));
    for text in ["", "[]", "{}", "{\"Creator\": 1}", "\u{0}", &"[".repeat(60_000)] {
        assert!(matches!(Config::parse(text.as_bytes()), Err(ConfigError::Syntax(_))));
    }
    assert_eq!(refused("\"Version\": 2", "\"Version\": 3"), ConfigError::Version(3));
    assert_eq!(refused("\"HKDF\"", "\"Shiny\""), ConfigError::UnknownFlags(vec!["Shiny".to_owned()]));
    assert_eq!(refused("\"HKDF\"", "\"HKDF\", \"FIDO2\""), ConfigError::Fido2);
    let field = |error: ConfigError, expected: &str| {
        assert!(matches!(error, ConfigError::Field { field, .. } if field == expected), "{error:?}");
    };
    field(refused("\"N\": 1024", "\"N\": 512"), "N of scrypt, as a power of 2");
    field(refused("\"N\": 1024", "\"N\": 536870912"), "N of scrypt, as a power of 2");
    field(refused("\"N\": 1024", "\"N\": 1025"), "N of scrypt");
    field(refused("\"N\": 1024", "\"N\": 0"), "N of scrypt");
    field(refused("\"R\": 8", "\"R\": 4294967295"), "R of scrypt");
    field(refused("\"P\": 1", "\"P\": 0"), "P of scrypt");
    field(refused("\"KeyLen\": 32", "\"KeyLen\": 64"), "KeyLen");
    field(refused("\"Salt\": \"", "\"Salt\": \"A"), "Salt");
    field(refused("\"Salt\": \"", &format!("\"Salt\": \"{}", "A".repeat(400))), "Salt");
    field(refused("\"EncryptedKey\": \"", "\"EncryptedKey\": \"AAAA"), "EncryptedKey");
    for (from, to) in [
        ("\"N\": 1024", "\"N\": -1"),
        ("\"N\": 1024", "\"N\": 1024, \"N\": 2048"),
        ("\"Version\": 2", "\"Version\": 2, \"Other\": 1"),
        ("\"KeyLen\": 32", "\"KeyLen\": 32, \"Other\": 1"),
        ("\t]\n}\n", "\t]\n}\nx"),
    ] {
        assert!(matches!(refused(from, to), ConfigError::Syntax(_)), "{to}");
    }
    for extra in ["\"KeySlots\": [],", "\"ConfigMac\": \"\",", "\"FIDO2\": {},"] {
        assert!(matches!(refused("\"Version\"", &format!("{extra} \"Version\"")), ConfigError::Conflict(_)));
    }
    let (slots, _) = create(with_slots(), ARGON2);
    let json = text(&slots);
    for (from, to) in [
        ("argon2id", "scrypt"),
        ("argon2id", "argon2i"),
        ("\"MemoryKiB\": 8192", "\"MemoryKiB\": 8191"),
        ("\"MemoryKiB\": 8192", "\"MemoryKiB\": 4294967295"),
        ("\"Passes\": 1,", ""),
        ("\"Passes\": 1", "\"Passes\": 33"),
        ("\"Lanes\": 1", "\"Lanes\": 1, \"N\": 1024"),
        ("\"Label\": \"one\"", "\"Label\": \"\""),
        ("\"ConfigMac\"", "\"Mac\""),
    ] {
        assert!(json.contains(from), "{from}");
        assert!(Config::parse(json.replacen(from, to, 1).as_bytes()).is_err(), "{to}");
    }
}

#[test]
fn memory_is_limited() {
    let (config, _) = create(Flags::default(), SCRYPT);
    let huge = text(&config).replace("\"N\": 1024", "\"N\": 268435456");
    let huge = Config::parse(huge.as_bytes()).unwrap();
    let Err(error @ ConfigError::Memory { .. }) = opens(&huge, "first") else { panic!("opened") };
    assert!(error.to_string().contains("limit of 2 GiB"), "{error}");
}

#[test]
fn a_lost_configuration_is_replaced_with_the_master_key() {
    let (_, master) = create(Flags::default(), SCRYPT);
    let paper = master.to_paper();
    let restored = MasterKey::from_paper(&paper).unwrap();
    let new = NewVolume { creator: "test 1", flags: Flags::default(), passphrase: passphrase("new", "", SCRYPT) };
    let config = Config::with_master(&new, &restored, Limits::default()).unwrap();
    let unlocked = config.unlock(b"new", Limits::default()).unwrap();
    let keys = |master| Keys::new(&Flags::default(), master).unwrap();
    assert_eq!(keys(&unlocked.master).fingerprint(), keys(&master).fingerprint());
}

#[test]
fn every_error_says_what_to_do() {
    for error in [
        ConfigError::TooLarge,
        ConfigError::Syntax("x".to_owned()),
        ConfigError::Version(1),
        ConfigError::UnknownFlags(vec!["A".to_owned(), "B".to_owned()]),
        ConfigError::Conflict("x"),
        ConfigError::Fido2,
        ConfigError::Field { field: "Salt", problem: "x".to_owned() },
        ConfigError::Memory { needs: 3 << 30, limit: 1 << 20 },
        ConfigError::Passphrase,
        ConfigError::EmptyPassphrase,
        ConfigError::Tampered,
        ConfigError::NoSlot,
        ConfigError::LabelInUse,
        ConfigError::LastSlot,
        ConfigError::SlotsFull,
        ConfigError::OnePassphrase,
        ConfigError::Argon2id,
        ConfigError::MasterKeyText,
        ConfigError::Library,
        ConfigError::Random,
    ] {
        let text = error.to_string();
        assert!(text.contains("; ") && !text.ends_with('.') && !text.contains('\n'), "{text}");
    }
}

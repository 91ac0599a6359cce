use crate::commands;
use crate::node::Node;
use crate::shared::Shared;
use crate::table::Table;
use crate::upcalls::Translate;
use crate::view::View;
use classify::{Chain, Classifier, Decision, External, Moves, ProcessTable, Rule, Rules, ViewId};
use std::sync::{Arc, OnceLock};
use vnode::{Command, Cx, Layer, Properties, Reports, Result, Upcalls, Vnode};

/// How callers get their views.
#[derive(Debug)]
pub struct Setup {
    /// Where processes are looked up.
    pub processes: Arc<dyn ProcessTable>,
    /// Classifiers that are asked before all others.
    pub classifiers: Vec<Arc<dyn Classifier>>,
    /// The initial rules, in order.
    pub rules: Vec<Rule>,
    /// A program that is asked about callers to whom no rule applies.
    pub external: Option<External>,
    /// The view of all other callers.
    pub default: ViewId,
    /// What happens to callers whose process can't be determined, or about whom the program does
    /// not reply.
    pub unknown: Decision,
    /// The view whose processes may change the rules.
    pub trusted: ViewId,
}

/// Several views of one tree.
#[derive(Debug)]
pub struct ViewFs {
    shared: Arc<Shared<Node>>,
    root: Arc<Node>,
}

impl ViewFs {
    /// Returns the layer over these views, at most [`crate::MAX_VIEWS`].
    #[must_use]
    pub fn new(views: Vec<View>, setup: Setup) -> Arc<Self> {
        let moves = Arc::new(Moves::new(Arc::clone(&setup.processes)));
        let rules = Arc::new(Rules::new(setup.rules));
        let external = setup.external.map(Arc::new);
        let mut classifiers = setup.classifiers;
        classifiers.push(Arc::clone(&moves) as Arc<dyn Classifier>);
        classifiers.push(Arc::clone(&rules) as Arc<dyn Classifier>);
        classifiers.extend(external.iter().map(|external| Arc::clone(external) as Arc<dyn Classifier>));
        let shared = Arc::new(Shared {
            views,
            chain: Chain::new(classifiers, setup.default, setup.unknown),
            processes: setup.processes,
            moves,
            rules,
            external,
            trusted: setup.trusted,
            table: Table::default(),
            root: OnceLock::new(),
        });
        let root = Node::root(&shared);
        let _first = shared.root.set(Arc::downgrade(&root));
        Arc::new(Self { shared, root })
    }

    /// Returns the moved processes, to move some before the layer is used.
    #[must_use]
    pub fn moves(&self) -> &Moves {
        &self.shared.moves
    }

    /// Returns the rules.
    #[must_use]
    pub fn rules(&self) -> &Rules {
        &self.shared.rules
    }
}

impl Layer for ViewFs {
    fn root(&self) -> Arc<dyn Vnode> {
        Arc::clone(&self.root) as Arc<dyn Vnode>
    }

    fn properties(&self) -> Properties {
        let all = self.shared.views.iter().map(|view| view.layer.properties());
        let joined = all.reduce(Properties::join).unwrap_or_default();
        Properties { varies_by_caller: true, attributes_vary_by_caller: true, data_varies_by_caller: true, ..joined }
    }

    fn attach(&self, upcalls: Arc<dyn Upcalls>) {
        for (view, of) in self.shared.views.iter().enumerate() {
            of.layer.attach(Arc::new(Translate { view, above: Arc::clone(&upcalls) }));
        }
    }

    fn reports(&self) -> Option<Arc<dyn Reports>> {
        None
    }

    fn vnode(&self, cx: &Cx<'_>, number: u64) -> Result<Arc<dyn Vnode>> {
        Node::by_number(&self.root, cx, number)
    }

    fn commands(&self) -> Vec<Command> {
        let mut all = commands::ALL.to_vec();
        for command in self.shared.views.iter().flat_map(|view| view.layer.commands()) {
            if !all.contains(&command) {
                all.push(command);
            }
        }
        all
    }

    fn sync(&self, cx: &Cx<'_>) -> Result<()> {
        let mut result = Ok(());
        for view in &self.shared.views {
            result = result.and(view.layer.sync(cx));
        }
        result
    }

    fn unmounted(&self) {
        self.shared.views.iter().for_each(|view| view.layer.unmounted());
    }
}

use crate::{Answer, Classifier, ViewId};
use std::sync::Arc;
use vnode::{Cx, Errno, Result};

/// What happens to a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The caller gets this view.
    View(ViewId),
    /// The caller is refused.
    Refuse,
}

/// Asks several classifiers in order.
#[derive(Debug)]
pub struct Chain {
    classifiers: Vec<Arc<dyn Classifier>>,
    /// For callers about whom no classifier says anything.
    default: ViewId,
    /// For callers whom a classifier can't determine.
    unknown: Decision,
}

impl Chain {
    /// Returns a chain. `default`: the view of callers about whom no classifier says anything;
    /// `unknown`: what happens to callers for whom a classifier can't find out.
    #[must_use]
    pub fn new(classifiers: Vec<Arc<dyn Classifier>>, default: ViewId, unknown: Decision) -> Self {
        Self { classifiers, default, unknown }
    }

    /// Returns the view of the caller.
    ///
    /// # Errors
    /// `EACCES` if the caller is refused; the errors of [`Classifier::classify`].
    pub fn view(&self, cx: &Cx<'_>) -> Result<ViewId> {
        match self.decide(cx)? {
            Decision::View(view) => Ok(view),
            Decision::Refuse => Err(Errno::ACCESS),
        }
    }

    fn decide(&self, cx: &Cx<'_>) -> Result<Decision> {
        for classifier in &self.classifiers {
            match classifier.classify(cx)? {
                Answer::View(view) => return Ok(Decision::View(view)),
                Answer::Pass => {}
                Answer::Unknown => return Ok(self.unknown),
            }
        }
        Ok(Decision::View(self.default))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicBool;

    #[derive(Debug)]
    struct Says(Answer);

    impl Classifier for Says {
        fn classify(&self, _cx: &Cx<'_>) -> Result<Answer> {
            Ok(self.0)
        }
    }

    fn view(answers: &[Answer], unknown: Decision) -> Result<ViewId> {
        let never = AtomicBool::new(false);
        let classifiers = answers.iter().map(|&answer| Arc::new(Says(answer)) as Arc<dyn Classifier>).collect();
        Chain::new(classifiers, 7, unknown).view(&Cx::new(1, 1, 1, 0, true, &never))
    }

    #[test]
    fn the_first_answer_counts() {
        use Answer::{Pass, Unknown, View};
        assert_eq!(view(&[], Decision::Refuse), Ok(7));
        assert_eq!(view(&[Pass, View(1), View(2)], Decision::Refuse), Ok(1));
        assert_eq!(view(&[Pass, Unknown, View(2)], Decision::Refuse), Err(Errno::ACCESS));
        assert_eq!(view(&[Unknown, View(2)], Decision::View(3)), Ok(3));
    }
}

//! Queues of several flows, which are served in turn.

use std::collections::VecDeque;

/// A flow of work: that of one image, or the engine's own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Flow(pub(crate) u64);

impl Flow {
    /// The work of the engine itself.
    pub(crate) const ENGINE: Self = Self(0);
}

/// Queues of several flows. Each flow's items keep their order. The flows are served in turn (round robin), so a flow with
/// many items delays each item of another one by one item only.
#[derive(Debug)]
pub(crate) struct Turns<T> {
    /// The flows that have items, the next one to serve first.
    flows: VecDeque<(Flow, VecDeque<T>)>,
    len: usize,
    /// The memory of the queue that became empty last.
    spare: VecDeque<T>,
}

impl<T> Default for Turns<T> {
    fn default() -> Self {
        Self { flows: VecDeque::new(), len: 0, spare: VecDeque::new() }
    }
}

impl<T> Turns<T> {
    /// Adds an item behind those of its flow.
    pub(crate) fn push(&mut self, flow: Flow, item: T) {
        self.len += 1;
        match self.flows.iter_mut().find(|(other, _)| *other == flow) {
            Some((_, items)) => items.push_back(item),
            None => {
                let mut items = std::mem::take(&mut self.spare);
                items.push_back(item);
                self.flows.push_back((flow, items));
            }
        }
    }

    /// Removes the first item of the flow whose turn it is. A flow whose first item may not be taken now loses no turn.
    pub(crate) fn pop_if(&mut self, mut may: impl FnMut(Flow, &T) -> bool) -> Option<T> {
        let is_due = |(flow, items): &(Flow, VecDeque<T>)| items.front().is_some_and(|first| may(*flow, first));
        let (flow, mut items) = self.flows.iter().position(is_due).and_then(|place| self.flows.remove(place))?;
        let item = items.pop_front();
        self.len -= 1;
        if items.is_empty() {
            self.spare = items
        } else {
            self.flows.push_back((flow, items))
        }
        item
    }

    /// Removes the first item of the flow whose turn it is.
    pub(crate) fn pop(&mut self) -> Option<T> {
        self.pop_if(|_, _| true)
    }

    /// The number of items.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The number of items of a flow.
    pub(crate) fn len_of(&self, flow: Flow) -> usize {
        self.flows.iter().find(|(other, _)| *other == flow).map_or(0, |(_, items)| items.len())
    }

    /// The flows that have items, and how many.
    pub(crate) fn flows(&self) -> impl Iterator<Item = (Flow, usize)> {
        self.flows.iter().map(|(flow, items)| (*flow, items.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns(items: &[(u64, u32)]) -> Turns<u32> {
        let mut turns = Turns::default();
        items.iter().for_each(|(flow, item)| turns.push(Flow(*flow), *item));
        turns
    }

    #[test]
    fn a_flood_of_one_flow_delays_each_item_of_others_by_one() {
        let mut turns = turns(&[(1, 10), (1, 11), (1, 12), (1, 13), (2, 20), (2, 21), (3, 30)]);
        assert_eq!((turns.len(), turns.len_of(Flow(1)), turns.flows().count()), (7, 4, 3));
        let order: Vec<_> = std::iter::from_fn(|| turns.pop()).collect();
        assert_eq!(order, [10, 20, 30, 11, 21, 12, 13]);
        assert_eq!((turns.len(), turns.flows().count()), (0, 0));
    }

    #[test]
    fn a_flow_that_may_not_be_served_keeps_its_turn() {
        let mut turns = turns(&[(1, 10), (1, 11), (2, 20), (2, 21)]);
        assert_eq!(turns.pop_if(|flow, _| flow != Flow(1)), Some(20));
        assert_eq!(turns.pop(), Some(10));
        assert_eq!(turns.pop_if(|_, item| *item == 11), Some(11), "of each flow, the first item is offered");
        assert_eq!(turns.pop_if(|_, _| false), None);
        assert_eq!(turns.pop(), Some(21));
    }
}

//! Which ready answers share a parcel: a pure function.

use std::collections::BTreeMap;

use super::run::SendOrder;
use crate::store::query::ReadyDelivery;
use crate::words::RouteName;

/// The answers of one parcel.
pub(super) type Load = Vec<ReadyDelivery>;

/// With whom an answer shares a parcel.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Company {
    /// With all others that have none of their own.
    Anyone,
    /// With its route's alone.
    Route(RouteName),
    /// With nobody.
    Nobody,
}

/// Puts ready answers into parcels of at most so many. In a strict order none goes before one
/// that was ready sooner; else those that may share a parcel find each other.
pub(super) fn pack(
    ready: Vec<ReadyDelivery>,
    per_parcel: usize,
    order: SendOrder,
    company: impl Fn(&ReadyDelivery) -> Company,
) -> Vec<Load> {
    let mut loads: Vec<Load> = Vec::new();
    let mut open: BTreeMap<Company, usize> = BTreeMap::new();
    for delivery in ready {
        let company = company(&delivery);
        if order == SendOrder::Strict {
            open.retain(|with, _| *with == company);
        }
        let at = open.get(&company).copied().filter(|_| company != Company::Nobody);
        match at.and_then(|at| loads.get_mut(at)).filter(|load| load.len() < per_parcel) {
            Some(load) => load.push(delivery),
            None => {
                open.insert(company, loads.len());
                loads.push(vec![delivery]);
            }
        }
    }
    loads
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::words::{Payload, RequestId, Seq, Token};

    fn delivery(n: u64, route: char) -> ReadyDelivery {
        ReadyDelivery {
            id: RequestId([n.to_le_bytes()[0]; 32]),
            seq: Seq(n),
            route: RouteName::new(&route.to_string()).unwrap(),
            generation: 0,
            revision: 0,
            answer: Token { epoch: 0, count: n },
            response: Payload::default(),
            failure: false,
            request: None,
        }
    }

    /// Answers by the letters of their routes: small ones share parcels, great ones go apart,
    /// and `x` goes alone.
    #[test]
    fn answers_share_parcels_with_those_that_they_may() {
        use SendOrder::{Spread, Strict};
        let company = |delivery: &ReadyDelivery| match delivery.route.as_str() {
            "x" => Company::Nobody,
            name if name.chars().all(char::is_uppercase) => Company::Route(delivery.route.clone()),
            _ => Company::Anyone,
        };
        let cases: [(&str, usize, SendOrder, &[&[u64]]); 11] = [
            ("", 3, Spread, &[]),
            ("abab", 1, Spread, &[&[0], &[1], &[2], &[3]]),
            ("abab", 3, Spread, &[&[0, 1, 2], &[3]]),
            ("AAAA", 3, Spread, &[&[0, 1, 2], &[3]]),
            ("ABAB", 3, Spread, &[&[0, 2], &[1, 3]]),
            ("ABAB", 3, Strict, &[&[0], &[1], &[2], &[3]]),
            ("AABA", 3, Strict, &[&[0, 1], &[2], &[3]]),
            ("aAbA", 3, Spread, &[&[0, 2], &[1, 3]]),
            ("axbx", 3, Spread, &[&[0, 2], &[1], &[3]]),
            ("axbb", 3, Strict, &[&[0], &[1], &[2, 3]]),
            ("AAAAB", 2, Spread, &[&[0, 1], &[2, 3], &[4]]),
        ];
        for (routes, per_parcel, order, expected) in cases {
            let ready = (0..).zip(routes.chars()).map(|(n, route)| delivery(n, route)).collect();
            let loads = pack(ready, per_parcel, order, company);
            let numbers: Vec<Vec<u64>> = loads.iter().map(|load| load.iter().map(|one| one.seq.0).collect()).collect();
            assert_eq!(numbers, expected, "{routes} {per_parcel} {order:?}");
        }
    }
}

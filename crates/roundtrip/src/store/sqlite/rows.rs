//! Reading all rows once, by sequential scans, when a store is opened.

use rusqlite::{Connection, Row};

use super::disk::{decode, each_row, number, read_journal_row, seq};
use crate::inbox::RouteNo;
use crate::outbox::LaneNo;
use crate::sender::Parcel;
use crate::store::disk::{AnswerHead, Fixture, GroupRow, HighWater, ItemRow, Mark, ReceiptRow, RequestRow, Rows};
use crate::words::{ItemId, Nonce, RequestId, Seq, UnixMs};

/// The rows behind a connection.
pub(super) struct SqliteRows<'c>(pub(super) &'c Connection);

fn blob<'r>(row: &'r Row<'_>, at: usize) -> rusqlite::Result<&'r [u8]> {
    Ok(row.get_ref(at)?.as_blob()?)
}

impl Rows for SqliteRows<'_> {
    type Error = rusqlite::Error;

    fn fixtures(&self, each: &mut dyn FnMut(Fixture)) -> Result<(), Self::Error> {
        each_row(self.0, "SELECT row FROM fixture", |row| {
            each(decode("fixture", blob(row, 0)?)?);
            Ok(())
        })
    }

    fn requests(&self, each: &mut dyn FnMut(RequestRow)) -> Result<(), Self::Error> {
        each_row(self.0, "SELECT seq, id, route, at, head FROM request ORDER BY seq", |row| {
            each(RequestRow {
                seq: seq(row)?,
                id: RequestId(row.get(1)?),
                route: RouteNo(row.get(2)?),
                admitted_at: UnixMs(number(row, 3)?),
                head: decode("request", blob(row, 4)?)?,
            });
            Ok(())
        })
    }

    fn answers(&self, each: &mut dyn FnMut(Seq, AnswerHead)) -> Result<(), Self::Error> {
        each_row(self.0, "SELECT seq, head FROM answer ORDER BY seq", |row| {
            each(seq(row)?, decode("answer", blob(row, 1)?)?);
            Ok(())
        })
    }

    fn marks(&self, each: &mut dyn FnMut(Seq, Mark)) -> Result<(), Self::Error> {
        each_row(self.0, "SELECT seq, row FROM mark ORDER BY seq", |row| {
            each(seq(row)?, decode("mark", blob(row, 1)?)?);
            Ok(())
        })
    }

    fn parcels(&self, each: &mut dyn FnMut(LaneNo, Nonce, Parcel)) -> Result<(), Self::Error> {
        each_row(self.0, "SELECT nonce, lane, row FROM parcel", |row| {
            let nonce = Nonce(number(row, 0)?);
            each(LaneNo(row.get(1)?), nonce, decode("parcel", blob(row, 2)?)?);
            Ok(())
        })
    }

    fn groups(&self, each: &mut dyn FnMut(u64, GroupRow)) -> Result<(), Self::Error> {
        each_row(self.0, "SELECT no, row FROM groups ORDER BY no", |row| {
            each(number(row, 0)?, decode("groups", blob(row, 1)?)?);
            Ok(())
        })
    }

    fn items(&self, each: &mut dyn FnMut(u64, ItemRow)) -> Result<(), Self::Error> {
        each_row(self.0, "SELECT no, groups, id, late FROM item ORDER BY no", |row| {
            let item = ItemRow { group: number(row, 1)?, id: ItemId(row.get(2)?), late: row.get(3)? };
            each(number(row, 0)?, item);
            Ok(())
        })
    }

    fn receipts(&self, each: &mut dyn FnMut(u64, ReceiptRow)) -> Result<(), Self::Error> {
        each_row(self.0, "SELECT no, row FROM receipt ORDER BY no", |row| {
            each(number(row, 0)?, decode("receipt", blob(row, 1)?)?);
            Ok(())
        })
    }

    fn first_entry(&self) -> Result<u64, Self::Error> {
        let first: Option<i64> = self.0.query_row("SELECT min(position) FROM journal", [], |row| row.get(0))?;
        Ok(first.map_or(0, i64::cast_unsigned))
    }

    fn high_water(&self) -> Result<HighWater, Self::Error> {
        let mut newest = HighWater::default();
        each_row(self.0, "SELECT entries FROM journal ORDER BY position DESC LIMIT 1", |row| {
            newest = read_journal_row(blob(row, 0)?)?.0;
            Ok(())
        })?;
        Ok(newest)
    }
}

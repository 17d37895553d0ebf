-- Ids and occurrences are hashes, which no statement wants in order: an index by hash has short entries, and no
-- order to keep. It cannot keep receipts from being there twice, so a tick takes away
-- what it does not know to be absent before it puts one.

DROP INDEX live_id;
CREATE INDEX live_id ON live USING hash (id);
DROP INDEX live_occurrence;
CREATE INDEX live_occurrence ON live USING hash (occurrence) WHERE occurrence IS NOT NULL;
ALTER TABLE ended DROP CONSTRAINT ended_pkey, ALTER COLUMN id SET NOT NULL;
CREATE INDEX ended_id ON ended USING hash (id);
ALTER TABLE seen DROP CONSTRAINT seen_pkey, ALTER COLUMN occurrence SET NOT NULL;
CREATE INDEX seen_occurrence ON seen USING hash (occurrence);

-- What views need to read payloads: null in place of an error, so that one request whose
-- payload is not what its route promised does not hide all others.

CREATE OR REPLACE FUNCTION shown_text(payload bytea) RETURNS text
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN RETURN convert_from(payload, 'UTF8'); EXCEPTION WHEN others THEN RETURN NULL; END $$;

CREATE OR REPLACE FUNCTION shown_json(encoding smallint, payload bytea) RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    IF encoding <> 1 THEN RETURN NULL; END IF;
    RETURN convert_from(payload, 'UTF8')::jsonb;
EXCEPTION WHEN others THEN RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION shown_integer(field text) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN RETURN field::bigint; EXCEPTION WHEN others THEN RETURN NULL; END $$;

CREATE OR REPLACE FUNCTION shown_numeric(field text) RETURNS numeric
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN RETURN field::numeric; EXCEPTION WHEN others THEN RETURN NULL; END $$;

CREATE OR REPLACE FUNCTION shown_float(field text) RETURNS double precision
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN RETURN field::double precision; EXCEPTION WHEN others THEN RETURN NULL; END $$;

CREATE OR REPLACE FUNCTION shown_boolean(field text) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN RETURN field::boolean; EXCEPTION WHEN others THEN RETURN NULL; END $$;

CREATE OR REPLACE FUNCTION shown_timestamp(field text) RETURNS timestamptz
LANGUAGE plpgsql STABLE PARALLEL SAFE AS $$
BEGIN RETURN field::timestamptz; EXCEPTION WHEN others THEN RETURN NULL; END $$;

CREATE OR REPLACE FUNCTION shown_since_1970(field text, each double precision) RETURNS timestamptz
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN RETURN to_timestamp(field::double precision / each); EXCEPTION WHEN others THEN RETURN NULL; END $$;

CREATE OR REPLACE FUNCTION shown_bytes(field text) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN RETURN decode(regexp_replace(field, '^0x', ''), 'hex'); EXCEPTION WHEN others THEN RETURN NULL; END $$;

-- A time or none: heights are negative, and what never comes is beyond all calendars.
CREATE OR REPLACE FUNCTION shown_time(ms bigint) RETURNS timestamptz
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
SELECT CASE WHEN ms BETWEEN 0 AND 253402300799999 THEN to_timestamp(ms / 1000.0) END $$;

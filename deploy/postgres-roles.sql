-- Runs once, when the volume is new, as the owner of the database.
--
-- The owner (penstock_owner) is for migrations only. Orchestrators log in as
-- penstock, which has no rights but those of penstock_app: it can neither
-- change the schema nor UPDATE or DELETE rows of event_log.
\set password `cat /run/secrets/postgres_password`
CREATE ROLE penstock_app NOLOGIN;
CREATE ROLE penstock LOGIN PASSWORD :'password' IN ROLE penstock_app;

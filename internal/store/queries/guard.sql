-- name: GuardRules :many
-- The revision of the guard's rules with those that are enabled; one row without
-- a rule if there is none. One statement: they belong together.
SELECT g.revision AS guard_revision, r.name, r.expression, r.required, r.approvers, r.timeout_ms, r.description, r.revision
FROM guard_state g LEFT JOIN guard_rules r ON r.enabled ORDER BY r.name;

-- name: HoldGuard :one
-- The revision of the rules, which stays until the transaction ends.
SELECT revision FROM guard_state FOR SHARE;

-- name: ChangeGuard :one
-- Begins a change of the rules: tasks that were judged by the old ones are
-- judged again. The revision is drawn at random, from 2 on: a database that was
-- restored must not come to one that a process knows other rules by.
UPDATE guard_state SET revision = 2 + ('x' || right(replace(gen_random_uuid()::text, '-', ''), 15))::bit(60)::bigint RETURNING revision;

-- name: ListRules :many
SELECT * FROM guard_rules r WHERE r.name > sqlc.arg(after_name)::text ORDER BY r.name LIMIT sqlc.arg(max_rows)::int;

-- name: GetRule :one
SELECT * FROM guard_rules WHERE name = sqlc.arg(name);

-- name: RuleRevisions :many
-- The states that a rule had, newest first.
SELECT * FROM guard_rule_revisions r WHERE r.name = sqlc.arg(name) ORDER BY r.revision DESC LIMIT sqlc.arg(max_rows)::int;

-- name: RuleAt :one
SELECT * FROM guard_rule_revisions r WHERE r.name = sqlc.arg(name) AND r.revision = sqlc.arg(revision);

-- name: SaveRule :one
-- Stores a rule with the next revision of its name, and that revision.
WITH saved AS (
    INSERT INTO guard_rules (name, expression, required, approvers, timeout_ms, enabled, description, source, revision, changed_at, changed_by)
    VALUES (sqlc.arg(name), sqlc.arg(expression), sqlc.arg(required), sqlc.arg(approvers)::text[], sqlc.arg(timeout_ms), sqlc.arg(enabled),
        sqlc.arg(description), sqlc.arg(source), COALESCE((SELECT max(v.revision) FROM guard_rule_revisions v WHERE v.name = sqlc.arg(name)), 0) + 1, now(), sqlc.arg(changed_by))
    ON CONFLICT (name) DO UPDATE SET expression = EXCLUDED.expression, required = EXCLUDED.required, approvers = EXCLUDED.approvers,
        timeout_ms = EXCLUDED.timeout_ms, enabled = EXCLUDED.enabled, description = EXCLUDED.description, source = EXCLUDED.source,
        revision = EXCLUDED.revision, changed_at = EXCLUDED.changed_at, changed_by = EXCLUDED.changed_by
    RETURNING *
)
INSERT INTO guard_rule_revisions (name, revision, deleted, expression, required, approvers, timeout_ms, enabled, description, source, changed_at, changed_by)
SELECT s.name, s.revision, false, s.expression, s.required, s.approvers, s.timeout_ms, s.enabled, s.description, s.source, s.changed_at, s.changed_by FROM saved s
RETURNING revision;

-- name: DeleteRule :execrows
-- Removes a rule; its last revision says so.
WITH gone AS (
    DELETE FROM guard_rules r WHERE r.name = sqlc.arg(name) RETURNING *
)
INSERT INTO guard_rule_revisions (name, revision, deleted, expression, required, approvers, timeout_ms, enabled, description, source, changed_at, changed_by)
SELECT g.name, (SELECT max(v.revision) FROM guard_rule_revisions v WHERE v.name = g.name) + 1, true, g.expression, g.required, g.approvers,
    g.timeout_ms, g.enabled, g.description, g.source, now(), sqlc.arg(changed_by) FROM gone g;

-- +goose Up

-- Everybody besides requested_by and rescheduled_by who had a hand in what the
-- task is: who asked for, edited and requeued the dead letter it came out of.
-- Null: nobody.
ALTER TABLE tasks ADD COLUMN also_requested_by text[];

-- Who started or resumed a batch: they have a hand in the tasks it makes.
ALTER TABLE dlq_batches ADD COLUMN started_by text[] NOT NULL DEFAULT '{}';
GRANT UPDATE (started_by) ON dlq_batches TO penstock_app;

-- The guard's rules as they are now.
CREATE TABLE guard_rules (
    name        text PRIMARY KEY CHECK (name ~ '^[A-Za-z0-9._-]{1,64}$'),
    -- CEL over the task.
    expression  text NOT NULL CHECK (octet_length(expression) BETWEEN 1 AND 4096),
    -- How many different people must approve.
    required    int NOT NULL CHECK (required IN (1, 2)),
    -- Who may: principals in lower case, and role:NAME.
    approvers   text[] NOT NULL CHECK (cardinality(approvers) BETWEEN 1 AND 100),
    -- After this long without a decision the task is rejected.
    timeout_ms  bigint NOT NULL CHECK (timeout_ms BETWEEN 1000 AND 31622400000),
    enabled     boolean NOT NULL,
    description text NOT NULL,
    -- Where it is kept: config rules are replaced at each start.
    source      text NOT NULL CHECK (source IN ('config', 'rpc')),
    revision    bigint NOT NULL CHECK (revision >= 1),
    changed_at  timestamptz NOT NULL,
    changed_by  text NOT NULL
);

-- Every state that a rule ever had; a name that was deleted goes on counting.
CREATE TABLE guard_rule_revisions (
    name        text NOT NULL,
    revision    bigint NOT NULL CHECK (revision >= 1),
    deleted     boolean NOT NULL,
    expression  text NOT NULL,
    required    int NOT NULL,
    approvers   text[] NOT NULL,
    timeout_ms  bigint NOT NULL,
    enabled     boolean NOT NULL,
    description text NOT NULL,
    source      text NOT NULL,
    changed_at  timestamptz NOT NULL,
    changed_by  text NOT NULL,
    PRIMARY KEY (name, revision)
);

-- What people are asked to decide.
CREATE TABLE approvals (
    id            uuid PRIMARY KEY,
    task_id       uuid NOT NULL,
    tenant        text NOT NULL,
    kind          text NOT NULL CHECK (kind IN ('guard', 'handler', 'effect')),
    -- The rule, or what the handler calls it.
    name          text NOT NULL,
    rule_revision bigint,
    -- Of type, payload, schedule, name and revision: nothing else is approved.
    digest        text NOT NULL,
    required      int NOT NULL CHECK (required IN (1, 2)),
    approvers     text[] NOT NULL,
    -- Who must not approve, in lower case.
    requesters    text[] NOT NULL CHECK (cardinality(requesters) >= 1 AND requesters::text = lower(requesters::text)),
    prompt        text,
    -- Why the rule could not be evaluated.
    rule_error    text,
    effect_scope  text,
    effect_key    text,
    effect_name   text,
    status        text NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'approved', 'rejected', 'expired', 'withdrawn')),
    requested_at  timestamptz NOT NULL,
    expires_at    timestamptz NOT NULL,
    decided_at    timestamptz,
    -- Who rejected it and why, or why it ended without a decision.
    decided_by    text,
    decision      text,
    CONSTRAINT approvals_decided CHECK ((status = 'pending') = (decided_at IS NULL)),
    CONSTRAINT approvals_rule CHECK ((kind = 'guard') = (rule_revision IS NOT NULL)),
    CONSTRAINT approvals_effect CHECK ((kind = 'effect') = (effect_scope IS NOT NULL AND effect_key IS NOT NULL AND effect_name IS NOT NULL)),
    CONSTRAINT approvals_rejected CHECK (status <> 'rejected' OR (decided_by <> '' AND decision <> '') IS TRUE),
    -- For the votes: whom a request shuts out can't change under them.
    CONSTRAINT approvals_requesters UNIQUE (id, requesters)
);
CREATE UNIQUE INDEX approvals_pending ON approvals (task_id, digest) WHERE status = 'pending';
CREATE INDEX approvals_task ON approvals (task_id, requested_at);
CREATE INDEX approvals_inbox ON approvals (requested_at, id) WHERE status = 'pending';
CREATE INDEX approvals_listed ON approvals (requested_at, id);
CREATE INDEX approvals_expiry ON approvals (expires_at) WHERE status = 'pending';
CREATE INDEX approvals_effects ON approvals (effect_scope, effect_key, effect_name) WHERE status = 'pending' AND kind = 'effect';

-- Who approved: each person once a request, and nobody who asked for the task.
CREATE TABLE approval_votes (
    approval_id uuid NOT NULL,
    principal   text NOT NULL,
    requesters  text[] NOT NULL,
    reason      text NOT NULL,
    at          timestamptz NOT NULL,
    PRIMARY KEY (approval_id, principal),
    FOREIGN KEY (approval_id, requesters) REFERENCES approvals (id, requesters) ON DELETE CASCADE,
    CONSTRAINT approval_votes_a_person CHECK (principal = lower(principal) AND principal = btrim(principal) AND principal NOT IN ('', 'anonymous')),
    CONSTRAINT approval_votes_not_requester CHECK (principal <> ALL (requesters))
);

GRANT SELECT, INSERT, UPDATE, DELETE ON guard_rules TO penstock_app;
GRANT SELECT, INSERT ON guard_rule_revisions, approval_votes, approvals TO penstock_app;
GRANT UPDATE (status, decided_at, decided_by, decision) ON approvals TO penstock_app;

-- The function runs with the rights of its owner: nobody's temporary table
-- must stand in for one of its own.
SELECT set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);

-- +goose StatementBegin
-- Removes decided approvals, with their votes, whose task was removed; looks at
-- most at max_rows of them after an id, and returns the last one looked at; null
-- at the end.
CREATE FUNCTION penstock_remove_approvals(after_id uuid, max_rows int) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER STRICT SET search_path FROM CURRENT SET lock_timeout = '1s' AS $$
DECLARE
    last uuid;
BEGIN
    SELECT max(x.id::text)::uuid INTO last FROM (SELECT a.id FROM approvals a WHERE a.id > after_id ORDER BY a.id LIMIT least(max_rows, 5000)) x;
    IF last IS NULL THEN
        RETURN NULL;
    END IF;
    DELETE FROM approvals a WHERE a.id > after_id AND a.id <= last AND a.status <> 'pending'
        AND a.decided_at < now() - interval '48 hours' AND NOT EXISTS (SELECT FROM tasks t WHERE t.id = a.task_id);
    RETURN last;
END
$$;
-- +goose StatementEnd
REVOKE ALL ON FUNCTION penstock_remove_approvals(uuid, int) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION penstock_remove_approvals(uuid, int) TO penstock_app;

-- +goose Down
DROP FUNCTION penstock_remove_approvals(uuid, int);
DROP TABLE approval_votes, approvals, guard_rule_revisions, guard_rules;
ALTER TABLE dlq_batches DROP COLUMN started_by;
ALTER TABLE tasks DROP COLUMN also_requested_by;

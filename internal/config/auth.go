package config

import "time"

// Auth tells who callers are and what they may call.
type Auth struct {
	TokensFile           string   `mapstructure:"tokens_file" doc:"File of the principals, their tokens and roles, one token a line: a name, a token of at least 16 characters or sha256: and its hash in hexadecimal, roles=ROLE,… and maybe tenants=TENANT,… and expires=TIME; or cert: and a name of a client certificate in place of the token. Callers send Authorization: Bearer TOKEN. A change is read within a second. Empty: every caller is anonymous and may call everything."`
	AnonymousRoles       []string `mapstructure:"anonymous_roles" doc:"Roles of callers that send no token, where there is a tokens file: producer, worker, operator, approver, viewer, payloads, admin. Empty: they may call nothing."`
	AllowUnauthenticated bool     `mapstructure:"allow_unauthenticated" doc:"Start although server.listen is reachable from other machines and neither auth.tokens_file nor server.tls.client_ca_file is set, or auth.anonymous_roles has more than viewer: whoever reaches the port may call everything, or what those roles may."`
}

// Replay bounds the requeueing and discarding of dead letters.
type Replay struct {
	ProposalTTL time.Duration `mapstructure:"proposal_ttl" doc:"How long a discard waits for its confirmation before it expires." min:"1s" max:"720h"`
	DraftTTL    time.Duration `mapstructure:"draft_ttl" doc:"How long a dry run can be started." min:"1s" max:"720h"`
}

// InternalJobs is the run interface for development and acceptance.
type InternalJobs struct {
	Enabled bool `mapstructure:"enabled" doc:"Serve POST /api/v1/internal/jobs and /api/v1/internal/jobs/{job_id}/run, which move jobs of their own through the states by hand. For development and acceptance only."`
}

// Alerts are the thresholds of the three built-in alerts.
type Alerts struct {
	Interval        time.Duration `mapstructure:"interval" doc:"How often the alert rules are evaluated; one orchestrator of all does it. 0: never." min:"100ms" max:"1h" zero:"true"`
	RetryingPercent int           `mapstructure:"retrying_percent" doc:"Raise retrying_share when more than this share, in percent, of the tasks under way (due or begun, not finished) is retrying. 100: never." min:"1" max:"100"`
	RetryingMinimum int           `mapstructure:"retrying_minimum" doc:"… and at least this many tasks are retrying." min:"1" max:"1000000000"`
	DLQGrowth       int           `mapstructure:"dlq_growth" doc:"Raise dlq_growth when more tasks of one tenant than this became dead letters within alerts.window." min:"1" max:"1000000000"`
	Window          time.Duration `mapstructure:"window" doc:"The window of dlq_growth and invalid_transitions." min:"1s" max:"24h"`
	InvalidInARow   int           `mapstructure:"invalid_in_a_row" doc:"Raise invalid_transitions (P1) when one orchestrator refused this many outcomes in a row with TASK_INVALID_TRANSITION within alerts.window. Repeats of an outcome that was applied do not count." min:"1" max:"10000"`
}

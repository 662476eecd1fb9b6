// Package config is the one place where settings come from: defaults, file,
// PENSTOCK_* environment variables and flags, in rising order of precedence.
// Viper never leaves it.
//
// A program calls LoadOrchestrator, LoadWorker or LoadClient. Each returns the
// configuration, where every value came from, and one error that joins all
// faults: unknown keys, values of the wrong type, values out of bounds.
//
// The structs below are the only description of the settings. Their tags are
// read by everything else in the package and by the generator of
// docs/configuration.md:
//
//   - mapstructure: the key, below that of the enclosing struct;
//   - doc: what it means, one or more sentences;
//   - min, max: inclusive bounds of a number or duration;
//   - zero: "true" if 0 is allowed although it is below min;
//   - oneof: the allowed strings, separated by commas;
//   - secret: "true" if the value must not be shown;
//   - inherits: the key whose value is taken where this one is unset.
package config

//go:generate go run ./gendoc -o ../../docs/configuration.md

import "time"

// Orchestrator is everything that `orchestrator` reads. DefaultOrchestrator
// has the defaults; the zero value is not valid.
type Orchestrator struct {
	Server       Server          `mapstructure:"server"`
	Postgres     Postgres        `mapstructure:"postgres"`
	Redis        Redis           `mapstructure:"redis"`
	Enqueue      Enqueue         `mapstructure:"enqueue"`
	Dispatch     Dispatch        `mapstructure:"dispatch"`
	Result       Result          `mapstructure:"result"`
	Recovery     Recovery        `mapstructure:"recovery"`
	Retry        Retry           `mapstructure:"retry"`
	Types        map[string]Type `mapstructure:"types" doc:"Retries, timeout and payload schema by task type (file only)."`
	Log          Log             `mapstructure:"log"`
	Retention    Retention       `mapstructure:"retention"`
	Auth         Auth            `mapstructure:"auth"`
	Replay       Replay          `mapstructure:"replay"`
	Alerts       Alerts          `mapstructure:"alerts"`
	Guard        Guard           `mapstructure:"guard"`
	Schedules    Schedules       `mapstructure:"schedules"`
	Effects      Effects         `mapstructure:"effects"`
	Metrics      Metrics         `mapstructure:"metrics"`
	InternalJobs InternalJobs    `mapstructure:"internal_jobs"`
	Debug        Debug           `mapstructure:"debug"`
}

// Server is the RPC listener.
type Server struct {
	Listen        string        `mapstructure:"listen" doc:"Address (host:port) of the RPC port: gRPC, gRPC-Web, Connect, REST, health, metrics. An empty host listens on every address."`
	ShutdownGrace time.Duration `mapstructure:"shutdown_grace" doc:"How long a stopping orchestrator finishes open calls and outcomes before it cuts them off." min:"0s" max:"1h"`
	StartDeadline time.Duration `mapstructure:"start_deadline" doc:"How long to keep trying to reach Postgres and Redis at start before giving up." min:"0s" max:"24h"`
	TLS           ServerTLS     `mapstructure:"tls"`

	AllowedHosts []string `mapstructure:"allowed_hosts" doc:"Names under which callers without a token may reach an unencrypted port, beside IP addresses and names without a dot: a browser can be made to call under any other. *.example.com stands for all names below example.com, * for every name. Used where callers without a token may do anything (no auth.tokens_file, or auth.anonymous_roles)."`

	MaxConnections           int `mapstructure:"max_connections" doc:"Most connections to the RPC port at a time; further ones are closed at once." min:"10" max:"1000000"`
	MaxConnectionsPerAddress int `mapstructure:"max_connections_per_address" doc:"Most connections from one address (of IPv6, one /64) at a time, so that one client can't take them all. Raise it where a proxy stands in front. This machine's own addresses (127.0.0.0/8, ::1) are not counted." min:"1" max:"1000000"`
}

// Postgres is the record.
type Postgres struct {
	URL         string `mapstructure:"url" doc:"Postgres URL (postgres://…). Required for serve and migrate." secret:"true"`
	URLFile     string `mapstructure:"url_file" doc:"File that holds the URL instead, e.g. a mounted secret. Space around it is ignored. Not together with url."`
	Role        string `mapstructure:"role" doc:"Role that the application switches to after connecting (SET ROLE); it can neither UPDATE nor DELETE event_log. Empty: stay the login role."`
	MaxConns    int    `mapstructure:"max_conns" doc:"Most Postgres connections of this process." min:"6" max:"1000"`
	AutoMigrate bool   `mapstructure:"auto_migrate" doc:"Apply pending migrations at start. Off: refuse to start until migrate up has run."`
}

// Redis carries the streams.
type Redis struct {
	URL     string `mapstructure:"url" doc:"Redis URL (redis://, rediss:// or unix://). Required for serve and for workers." secret:"true"`
	URLFile string `mapstructure:"url_file" doc:"File that holds the URL instead, e.g. a mounted secret. Space around it is ignored. Not together with url."`
	// KeyPrefix is checked by streams.CheckPrefix.
	KeyPrefix string `mapstructure:"key_prefix" doc:"Put in front of the name of every key and channel in Redis, so that several deployments can share a Redis database: up to 64 of A-Z a-z 0-9 . _ : - with a colon at the end, such as shop: (no hash tags). Orchestrators and workers of a deployment must have the same one: a worker with another gets nothing. See docs/redis-rights.md."`
}

// Enqueue bounds what the RPC accepts and how calls are batched.
type Enqueue struct {
	MaxPayloadBytes  int           `mapstructure:"max_payload_bytes" doc:"Largest payload of a task in bytes." min:"1" max:"8388608"`
	MaxPayloadDepth  int           `mapstructure:"max_payload_depth" doc:"Deepest nesting of arrays and objects in a payload." min:"1" max:"1000"`
	MaxScheduleAhead time.Duration `mapstructure:"max_schedule_ahead" doc:"How far in the future a task may be scheduled." min:"1s" max:"876000h"`
	DefaultTimeout   time.Duration `mapstructure:"default_timeout" doc:"Start-to-close timeout of a task that names none. Whole milliseconds." min:"1ms" max:"596h31m23.647s"`
	MaxBatch         int           `mapstructure:"max_batch" doc:"Most tasks in one Postgres transaction." min:"1" max:"10000"`
	Flushes          int           `mapstructure:"flushes" doc:"How many enqueue transactions may run at once in this process: of single calls, of batches, and of tasks with dependencies, each." min:"1" max:"64"`
	MaxWaiting       int           `mapstructure:"max_waiting" doc:"Most tasks waiting for a transaction in this process; beyond it calls get RESOURCE_EXHAUSTED." min:"1" max:"10000000"`
}

// Dispatch moves due tasks from Postgres into the streams.
type Dispatch struct {
	Window       int           `mapstructure:"window" doc:"Most entries of one task stream that are not acknowledged; beyond it tasks wait in Postgres." min:"1" max:"1000000"`
	MaxBatch     int           `mapstructure:"max_batch" doc:"Most tasks dispatched in one transaction." min:"1" max:"10000"`
	PollInterval time.Duration `mapstructure:"poll_interval" doc:"How often to look for due tasks that other replicas left, besides the timer that fires at the next due time." min:"1ms" max:"1h"`
}

// Result applies outcomes.
type Result struct {
	MaxBatch  int           `mapstructure:"max_batch" doc:"Most outcomes applied in one transaction." min:"1" max:"10000"`
	Consumers int           `mapstructure:"consumers" doc:"How many result transactions may run at once in this process." min:"1" max:"64"`
	TakeOver  time.Duration `mapstructure:"take_over" doc:"Outcomes, and entries of stream:dlq, that another orchestrator fetched and has not applied for this long are taken over." min:"10ms" max:"1h"`
}

// Recovery holds the times after which others are taken for dead.
type Recovery struct {
	VisibilityTimeout  time.Duration `mapstructure:"visibility_timeout" doc:"A task entry that its worker has not renewed for this long is taken from it. Workers must use the same value." min:"300ms" max:"24h"`
	ReclaimInterval    time.Duration `mapstructure:"reclaim_interval" doc:"How often to look for entries of lost workers. 0: a quarter of the visibility timeout, between 100ms and 30s." min:"1ms" max:"24h" zero:"true"`
	ReconcileInterval  time.Duration `mapstructure:"reconcile_interval" doc:"How often to compare live tasks with what Redis holds." min:"10ms" max:"24h"`
	InstanceTTL        time.Duration `mapstructure:"instance_ttl" doc:"An orchestrator that has shown no sign of life for this long is taken for dead and its open dispatches are taken over." min:"100ms" max:"1h"`
	TimeoutGrace       time.Duration `mapstructure:"timeout_grace" doc:"A running task whose worker has not answered for this long after the task's timeout is taken from it and retried (TASK_TIMEOUT). A worker gives up a handler that ignores its timeout after 5s: with less than that, orchestrators decide first." min:"0s" max:"24h"`
	HeartbeatInterval  time.Duration `mapstructure:"heartbeat_interval" doc:"A running task gets at most one event task.heartbeat or task.progress in this time, however often its worker reports." min:"10ms" max:"24h"`
	ExpiryGrace        time.Duration `mapstructure:"expiry_grace" doc:"A task whose time to start is over while it is in its stream is cancelled (TASK_EXPIRED) this long after it, unless a worker has reported that it started it. One that waits in Postgres is cancelled at once." min:"0s" max:"24h"`
	MaxInterruptions   int           `mapstructure:"max_interruptions" doc:"A task interrupted by a lost worker more often than this becomes a dead letter (TASK_WORKER_LOST)." min:"0" max:"1000"`
	UnknownTypeTimeout time.Duration `mapstructure:"unknown_type_timeout" doc:"A task whose type no worker has known for this long becomes a dead letter (TASK_UNKNOWN_TYPE); until then it is handed back with a growing delay. 0s: never." min:"0s" max:"8760h"`
}

// Retry is the policy of tasks that bring none and whose type has none.
type Retry struct {
	MaxRetries int             `mapstructure:"max_retries" doc:"Additional attempts after the first." min:"0" max:"1000"`
	Strategy   string          `mapstructure:"strategy" doc:"How the delay grows with each retry: exponential (base × 2ⁿ⁻¹), linear (base × n), fixed (base) or schedule (a list)." oneof:"exponential,linear,fixed,schedule"`
	Base       time.Duration   `mapstructure:"base" doc:"Delay before the first retry, without jitter. Whole milliseconds." min:"1ms" max:"8760h"`
	MaxBackoff time.Duration   `mapstructure:"max_backoff" doc:"Upper bound of a delay before jitter, at least retry.base. Whole milliseconds." min:"1ms" max:"8760h"`
	JitterMax  time.Duration   `mapstructure:"jitter_max" doc:"Largest random addition to a delay, inclusive. Whole milliseconds." min:"0s" max:"8760h"`
	Schedule   []time.Duration `mapstructure:"schedule" doc:"The delays of strategy schedule, 1 to 100, e.g. 1m,5m,15m; the last one repeats. Jitter is added; base and max_backoff do not apply. Whole milliseconds." min:"1ms" max:"8760h"`
}

// Retention bounds what is kept.
type Retention struct {
	TrimInterval    time.Duration `mapstructure:"trim_interval" doc:"How often acknowledged stream entries are trimmed." min:"10ms" max:"24h"`
	TrimGrace       time.Duration `mapstructure:"trim_grace" doc:"Acknowledged task entries younger than this are kept in their stream." min:"0s" max:"720h"`
	Tasks           time.Duration `mapstructure:"tasks" doc:"How long finished tasks are kept, with their events, after the last thing that happened to them; then they are removed for good. A task whose dead letter has not expired (retention.dead_letters), or whose idempotency key still holds, is kept longer. 0: keep all." min:"48h" max:"876000h" zero:"true"`
	IdempotencyKeys time.Duration `mapstructure:"idempotency_keys" doc:"How long an idempotency key holds after its task has finished; then an enqueue with the same key makes a new task, with side effects of its own. 0: as long as its task is kept." min:"1h" max:"876000h" zero:"true"`
	Effects         time.Duration `mapstructure:"effects" doc:"How long side effects are kept in the ledger after the last thing that happened to them. One that a task can still use, or a dead letter that can be requeued, is kept longer. 0: as retention.tasks." min:"1h" max:"876000h" zero:"true"`
	Consumers       time.Duration `mapstructure:"consumers" doc:"A consumer of a stream that holds no entry and has done nothing for this long is removed from its group. 0: never." min:"1h" max:"876000h" zero:"true"`
	Tombstones      time.Duration `mapstructure:"tombstones" doc:"The least time that workers are told not to start a task that was cancelled; longer than trim_grace. A tombstone whose stream entry may still be fetched is never removed." min:"10s" max:"720h"`
	DeadLetters     time.Duration `mapstructure:"dead_letters" doc:"Dead letters that were requeued or discarded longer than this ago lose their content, in Postgres and in stream:dlq; each is an event. Open ones are never touched. 0: keep all." min:"1s" max:"876000h" zero:"true"`
}

// Effects is about the ledger of side effects.
type Effects struct {
	DoubtAfter time.Duration `mapstructure:"doubt_after" doc:"How long after its reservation an effect whose execution was lost is taken for in doubt. Until then the next execution waits: the lost one may still be about to tell." min:"0s" max:"24h"`
}

// Metrics is about /metrics.
type Metrics struct {
	Queues []string `mapstructure:"queues" doc:"Queues that metrics name and whose depth is measured, at most 50; all others are counted as other."`
	Types  []string `mapstructure:"types" doc:"Task types that metrics name, besides those of types, at most 200; all others are counted as other."`
}

// Debug is for whoever looks for what a process spends its time on.
type Debug struct {
	Listen string `mapstructure:"listen" doc:"Address (host:port) of profiles of this process, for go tool pprof: /debug/pprof/. It asks nobody who they are, so the host must be 127.0.0.1, another loopback address or localhost. Empty: none."`
}

// Schedules is about recurring schedules.
type Schedules struct {
	MissedGrace time.Duration `mapstructure:"missed_grace" doc:"A fire time that is later than this was missed: the policy of its schedule says what becomes of it." min:"1s" max:"24h"`
	KeepFires   time.Duration `mapstructure:"keep_fires" doc:"How long the record of what became of fire times is kept." min:"1h" max:"876000h"`
}

// Log is the process log on standard error.
type Log struct {
	Level  string `mapstructure:"level" doc:"Least severe records that are logged." oneof:"debug,info,warn,error"`
	Format string `mapstructure:"format" doc:"text for people, json for machines, auto: text on a terminal and json otherwise. NO_COLOR turns colours off." oneof:"auto,text,json"`
}

// Worker is everything that `worker` reads. DefaultWorker has the defaults; the
// zero value is not valid.
type Worker struct {
	Redis             Redis              `mapstructure:"redis"`
	Queues            []string           `mapstructure:"queues" doc:"Queues to work on, each 1 to 64 of A-Z a-z 0-9 . _ - and no two the same; at most concurrency many."`
	Concurrency       int                `mapstructure:"concurrency" doc:"Most tasks that run at once in this process." min:"1" max:"10000"`
	VisibilityTimeout time.Duration      `mapstructure:"visibility_timeout" doc:"Must equal the orchestrators' recovery.visibility_timeout; leases are renewed every third of it." min:"300ms" max:"24h"`
	ShutdownGrace     time.Duration      `mapstructure:"shutdown_grace" doc:"How long a stopping worker lets running tasks finish before it hands them back." min:"0s" max:"1h"`
	StartDeadline     time.Duration      `mapstructure:"start_deadline" doc:"How long to keep trying to reach Redis at start before giving up." min:"0s" max:"24h"`
	Orchestrator      OrchestratorRPC    `mapstructure:"orchestrator"`
	HeartbeatInterval time.Duration      `mapstructure:"heartbeat_interval" doc:"Time between two heartbeats to the orchestrator, if orchestrator.url names one." min:"10ms" max:"24h"`
	HealthListen      string             `mapstructure:"health_listen" doc:"Address (host:port) of /livez, /readyz and /metrics. Without a host it is 127.0.0.1; 0.0.0.0 or [::] listens on every address. Empty: none."`
	Log               Log                `mapstructure:"log"`
	Handlers          map[string]Handler `mapstructure:"handlers" doc:"Handlers by task type (file only)."`
	HTTP              HTTPClient         `mapstructure:"http"`
}

// OrchestratorRPC is where a worker sends its heartbeats.
type OrchestratorRPC struct {
	URL       string    `mapstructure:"url" doc:"Base URL (http:// or https://) of the orchestrators' RPC, several separated by commas. With it the worker sends heartbeats: progress is kept, it learns sooner of cancelled tasks, it is listed and can be told to drain. Empty: the worker needs Redis only." secret:"true"`
	Token     string    `mapstructure:"token" doc:"Token that says who the worker is; see auth.tokens_file." secret:"true"`
	TokenFile string    `mapstructure:"token_file" doc:"File that holds the token instead. Space around it is ignored. Not together with token."`
	TLS       ClientTLS `mapstructure:"tls"`
}

// Handler declares what runs tasks of one type, without writing Go. Kind
// decides which of the other keys apply.
type Handler struct {
	Kind string `mapstructure:"kind" doc:"What runs the task: http POSTs the payload, exec starts a program, echo returns the payload, sleep waits for the time that the payload names, inject fails as the payload says (docs/failure-injection.md)." oneof:"http,exec,echo,sleep,inject"`
	// http
	URL     string            `mapstructure:"url" doc:"http: where the payload is POSTed. Its host must be allowed by http.allow." secret:"true"`
	Headers map[string]string `mapstructure:"headers" doc:"http: additional request headers." secret:"true"`
	Effects string            `mapstructure:"effects" doc:"http: auto records the call in the orchestrators' ledger of side effects, if orchestrator.url names one, so that it is made once; off does not. Empty: auto (docs/effects.md)." oneof:"auto,off" zero:"true"`
	InDoubt string            `mapstructure:"in_doubt" doc:"http: what becomes of a call that a lost worker may have made: stop asks a person, run_again makes it again, with the same Idempotency-Key. Empty: stop." oneof:"stop,run_again" zero:"true"`
	KeyForm string            `mapstructure:"key_form" doc:"http: how Idempotency-Key is written: plain is the key as it is (what a header can't hold, and %, percent-encoded), structured a quoted string by RFC 8941. Empty: plain." oneof:"plain,structured" zero:"true"`
	// exec
	Command []string          `mapstructure:"command" doc:"exec: the program and its arguments, no shell. Arguments may contain {{task_id}}, {{attempt}} and {{type}}. The payload is on standard input, standard output becomes the result."`
	Env     map[string]string `mapstructure:"env" doc:"exec: the program's whole environment besides PATH and the PENSTOCK_TASK_* variables." secret:"true"`
	Dir     string            `mapstructure:"dir" doc:"exec: working directory. Empty: a fresh temporary directory for each run."`
	// inject
	SimulateRestart bool `mapstructure:"simulate_restart" doc:"inject: process_restart_interrupt leaves the task as the death of this process would, instead of killing the process."`
	// http, exec
	MaxOutputBytes int `mapstructure:"max_output_bytes" doc:"http, exec: largest response body or standard output kept as the result. 0: 262144." min:"0" max:"67108864"`
}

// HTTPClient limits what http handlers may reach.
type HTTPClient struct {
	Allow        []string `mapstructure:"allow" doc:"Hosts that http handlers may call: a host, *.domain for every host below it, either with :port for that port only, or a CIDR of addresses. Empty: none."`
	AllowPrivate bool     `mapstructure:"allow_private" doc:"Whether an allowed host name may resolve to a loopback, private or link-local address."`
}

// Client is what the command-line clients read. DefaultClient has the defaults.
type Client struct {
	Server    string    `mapstructure:"server" doc:"Base URL (http:// or https://) of the orchestrator for client commands." secret:"true"`
	Token     string    `mapstructure:"token" doc:"Token that says who the caller is; see auth.tokens_file." secret:"true"`
	TokenFile string    `mapstructure:"token_file" doc:"File that holds the token instead. Space around it is ignored. Not together with token."`
	TLS       ClientTLS `mapstructure:"tls"`
}

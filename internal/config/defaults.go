package config

import "time"

// defaultVisibilityTimeout is shared: orchestrators and workers must agree.
const defaultVisibilityTimeout = 300 * time.Second

// defaultHeartbeatInterval is that of workers, too.
const defaultHeartbeatInterval = 30 * time.Second

// DefaultOrchestrator returns the orchestrator's defaults. They are valid but
// name neither Postgres nor Redis; see RequirePostgres and RequireRedis.
func DefaultOrchestrator() Orchestrator {
	return Orchestrator{
		Server: Server{
			Listen:        "127.0.0.1:8080",
			ShutdownGrace: 20 * time.Second,
			StartDeadline: time.Minute,

			MaxConnections: 8000, MaxConnectionsPerAddress: 1000,
		},
		Postgres: Postgres{Role: "penstock_app", MaxConns: 16, AutoMigrate: true},
		Enqueue: Enqueue{
			MaxPayloadBytes:  256 * 1024,
			MaxPayloadDepth:  64,
			MaxScheduleAhead: 5 * 365 * 24 * time.Hour,
			DefaultTimeout:   5 * time.Minute,
			MaxBatch:         1000,
			Flushes:          2,
			MaxWaiting:       20_000,
		},
		Dispatch: Dispatch{Window: 10_000, MaxBatch: 1000, PollInterval: time.Second},
		Result:   Result{MaxBatch: 512, Consumers: 2, TakeOver: 5 * time.Second},
		Recovery: Recovery{
			VisibilityTimeout:  defaultVisibilityTimeout,
			ReconcileInterval:  time.Minute,
			InstanceTTL:        5 * time.Second,
			TimeoutGrace:       10 * time.Second,
			HeartbeatInterval:  defaultHeartbeatInterval,
			ExpiryGrace:        5 * time.Second,
			MaxInterruptions:   3,
			UnknownTypeTimeout: 24 * time.Hour,
		},
		Retry: Retry{
			MaxRetries: 3,
			Strategy:   "exponential",
			Base:       time.Second,
			MaxBackoff: 30 * time.Second,
			JitterMax:  300 * time.Millisecond,
		},
		Log:       defaultLog(),
		Retention: Retention{TrimInterval: time.Second, TrimGrace: 5 * time.Second, Consumers: 24 * time.Hour, Tombstones: 10 * time.Minute},
		Effects:   Effects{DoubtAfter: 5 * time.Second},
		Metrics:   Metrics{Queues: []string{"default"}},
		Schedules: Schedules{MissedGrace: time.Minute, KeepFires: 30 * 24 * time.Hour},
		Replay:    Replay{ProposalTTL: 24 * time.Hour, DraftTTL: 24 * time.Hour},
		Alerts: Alerts{
			Interval: 10 * time.Second, RetryingPercent: 50, RetryingMinimum: 100, DLQGrowth: 100, Window: 5 * time.Minute, InvalidInARow: 10,
		},
	}
}

// DefaultWorker returns the worker's defaults. They are valid but name no
// Redis; see RequireRedis.
func DefaultWorker() Worker {
	return Worker{
		Queues:            []string{"default"},
		Concurrency:       10,
		VisibilityTimeout: defaultVisibilityTimeout,
		ShutdownGrace:     20 * time.Second,
		StartDeadline:     time.Minute,
		HeartbeatInterval: defaultHeartbeatInterval,
		Log:               defaultLog(),
	}
}

// DefaultClient returns the defaults of the command-line clients.
func DefaultClient() Client { return Client{Server: "http://127.0.0.1:8080"} }

func defaultLog() Log { return Log{Level: "info", Format: "auto"} }

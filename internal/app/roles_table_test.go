package app

// Who may call what, written out by hand: the RPCs' own declarations are checked
// against it. An admin may call everything and is not listed.
const (
	reading               = "viewer operator approver"
	taskReaders           = reading + " producer"
	taskReadersAndWorkers = taskReaders + " worker"
	enqueueing            = "producer operator"
)

// may has a row for every RPC.
var may = map[string]string{
	"TaskService/Enqueue":          enqueueing,
	"TaskService/EnqueueBatch":     enqueueing,
	"TaskService/GetTask":          taskReaders,
	"TaskService/ListTasks":        taskReaders,
	"TaskService/CountTasks":       taskReaders,
	"TaskService/GetQueue":         taskReaders,
	"TaskService/ListQueues":       taskReaders,
	"TaskService/WaitTask":         taskReaders,
	"TaskService/ListEvents":       taskReaders,
	"TaskService/SearchEvents":     taskReaders,
	"TaskService/ListStateEvents":  taskReaders,
	"TaskService/GetWorkflow":      taskReaders,
	"TaskService/WatchEvents":      taskReaders,
	"TaskService/CancelTask":       enqueueing,
	"TaskService/CancelTasks":      "operator",
	"TaskService/EraseTask":        "operator",
	"TaskService/RescheduleTask":   enqueueing,
	"TaskService/ListDependencies": taskReadersAndWorkers,
	"TaskService/GetTaskGraph":     taskReaders,
	"TaskService/GetDeployment":    taskReadersAndWorkers,

	"DeadLetterService/ListDeadLetters":          reading,
	"DeadLetterService/GroupDeadLetters":         reading,
	"DeadLetterService/GetDeadLetter":            reading,
	"DeadLetterService/RequeueDeadLetters":       "operator",
	"DeadLetterService/EditDeadLetter":           "operator",
	"DeadLetterService/CreateDeadLetterBatch":    "operator",
	"DeadLetterService/ProposeDiscard":           "operator",
	"DeadLetterService/ConfirmDiscard":           "operator",
	"DeadLetterService/RejectDiscard":            "operator",
	"DeadLetterService/GetDeadLetterBatch":       reading,
	"DeadLetterService/ListDeadLetterBatches":    reading,
	"DeadLetterService/ListDeadLetterBatchItems": reading,
	"DeadLetterService/ControlDeadLetterBatch":   "operator",

	"WorkerService/Heartbeat":   "worker",
	"WorkerService/ListWorkers": reading,
	"WorkerService/DrainWorker": "operator",
	"WorkerService/EvictWorker": "operator",

	"EffectService/ReserveEffect":  "worker",
	"EffectService/CompleteEffect": "worker",
	"EffectService/ReleaseEffect":  "worker",
	"EffectService/GetEffect":      reading,
	"EffectService/ListEffects":    reading,
	"EffectService/ResolveEffect":  "operator approver",

	"ApprovalService/ListApprovals": reading,
	"ApprovalService/GetApproval":   reading,
	"ApprovalService/Approve":       "approver operator",
	"ApprovalService/Reject":        "approver operator",
	"ApprovalService/ApproveMany":   "approver operator",
	"ApprovalService/RejectMany":    "approver operator",
	"ApprovalService/ListRules":     reading,
	"ApprovalService/GetRule":       reading,
	"ApprovalService/TestRule":      reading,
	"ApprovalService/SaveRule":      "",
	"ApprovalService/DeleteRule":    "",

	"ScheduleService/CreateSchedule":  "operator",
	"ScheduleService/UpdateSchedule":  "operator",
	"ScheduleService/GetSchedule":     taskReaders,
	"ScheduleService/ListSchedules":   taskReaders,
	"ScheduleService/PauseSchedule":   "operator",
	"ScheduleService/ResumeSchedule":  "operator",
	"ScheduleService/TriggerSchedule": "operator",
	"ScheduleService/DeleteSchedule":  "operator",
	"ScheduleService/ListFires":       taskReaders,
	"ScheduleService/NextFires":       taskReaders,
}

// beside are the paths that are no RPC and ask who calls. What the router serves
// besides RPCs is here or in open: see TestNoPathIsForgotten.
var beside = map[string]string{
	"GET /api/v1/events/watch?position=earliest": taskReaders,
	"POST /api/v1/internal/jobs":                 "",
	"POST /api/v1/internal/jobs/x/run":           "",
	"GET /api/v1/internal/nothing":               "",
}

// open are those that ask nobody.
var open = []string{
	"GET /livez", "GET /readyz", "GET /metrics", "GET /openapi.json",
	"POST /grpc.health.v1.Health/Check",
	"POST /grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
	"POST /grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
}

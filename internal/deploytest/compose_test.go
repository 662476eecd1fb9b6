package deploytest

import (
	"bytes"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/types"
)

func TestServices(t *testing.T) {
	t.Parallel()
	p := compose(t, nil)
	want := []string{"dlq-replay", "migrate", "orchestrator-1", "orchestrator-2", "postgres", "redis", "worker"}
	if got := slices.Sorted(maps.Keys(p.Services)); !slices.Equal(got, want) {
		t.Errorf("services are %q, want %q", got, want)
	}
	for _, s := range services(p) {
		if on := s.Profiles; s.Name == "dlq-replay" != (len(on) > 0) {
			t.Errorf("%s: profiles are %q; dlq-replay alone runs on demand", s.Name, on)
		}
		if s.Name == "migrate" != (s.Build != nil) {
			t.Errorf("%s: migrate, and nothing else, builds the image", s.Name)
		}
	}
}

// The loader must refuse what the specification does not know.
func TestSchemaHasTeeth(t *testing.T) {
	t.Parallel()
	text := read(t, composeFile)
	for _, c := range []struct{ name, old, with string }{
		{"unknown key", "restart: unless-stopped", "restarts: unless-stopped"},
		{"wrong type", "cap_drop: [ALL]", "cap_drop: ALL"},
		{"unknown condition", "condition: service_healthy", "condition: service_fine"},
		{"unknown dependency", "migrate: {condition", "migration: {condition"},
		{"undeclared secret", "secrets: [redis_password]", "secrets: [redis_passwd]"},
		{"undeclared network", "networks: [rpc]", "networks: [web]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			broken := bytes.Replace(text, []byte(c.old), []byte(c.with), 1)
			if bytes.Equal(broken, text) {
				t.Fatalf("docker-compose.yml does not have %q", c.old)
			}
			if _, err := loadCompose(nil, types.ConfigFile{Filename: composeFile, Content: broken}); err == nil {
				t.Errorf("%q in place of %q was accepted", c.with, c.old)
			}
		})
	}
}

// A version and a distribution release; digests may follow.
var pinned = regexp.MustCompile(`^[a-z0-9./-]+:\d+\.\d+(\.\d+)?-[a-z]+(@sha256:[0-9a-f]{64})?$`)

func TestImagesArePinned(t *testing.T) {
	t.Parallel()
	for _, s := range services(compose(t, nil)) {
		if !ours(s) && !pinned.MatchString(s.Image) {
			t.Errorf("%s: image %q has no tag such as 7.4.6-bookworm", s.Name, s.Image)
		}
	}
	p := compose(t, map[string]string{"IMAGE": "registry.example.com/penstock:1.2.3", "WORKER_IMAGE": "handlers:4"})
	for name, want := range map[string]string{
		"worker": "handlers:4", "orchestrator-1": "registry.example.com/penstock:1.2.3",
	} {
		if got := p.Services[name].Image; got != want {
			t.Errorf("%s: image is %q, want %q as the variable says", name, got, want)
		}
	}
}

func TestOnlyTheRPCPortIsPublished(t *testing.T) {
	t.Parallel()
	taken := map[string]string{}
	for _, s := range services(compose(t, nil)) {
		if s.NetworkMode != "" || s.Privileged || s.Pid != "" || s.Ipc != "" {
			t.Errorf("%s: shares name spaces with the host or is privileged", s.Name)
		}
		if !isOrchestrator(s) {
			if len(s.Ports) > 0 {
				t.Errorf("%s: publishes %v; only orchestrators may", s.Name, s.Ports)
			}
			continue
		}
		if len(s.Ports) != 1 {
			t.Fatalf("%s: publishes %d ports, want the RPC port only", s.Name, len(s.Ports))
		}
		port := s.Ports[0]
		if port.HostIP != "127.0.0.1" {
			t.Errorf("%s: published on %q, want 127.0.0.1 by default", s.Name, port.HostIP)
		}
		if other := taken[port.Published]; other != "" {
			t.Errorf("%s: host port %s is that of %s", s.Name, port.Published, other)
		}
		taken[port.Published] = s.Name
		if cfg := orchestratorConfig(t, s); cfg.Server.Listen != ":8080" || port.Target != 8080 {
			t.Errorf("%s: publishes %d, listens on %q", s.Name, port.Target, cfg.Server.Listen)
		}
	}
}

func TestHealthChecks(t *testing.T) {
	t.Parallel()
	for _, s := range services(compose(t, nil)) {
		h, why := s.HealthCheck, s.Extensions["x-no-healthcheck"]
		if h == nil {
			if text, _ := why.(string); text == "" {
				t.Errorf("%s: has no health check and no x-no-healthcheck that says why", s.Name)
			}
			if s.Restart != "no" {
				t.Errorf("%s: restart is %q; a service without health check must be one that ends", s.Name, s.Restart)
			}
			continue
		}
		switch {
		case why != nil:
			t.Errorf("%s: has both a health check and x-no-healthcheck", s.Name)
		case h.Disable || len(h.Test) < 2:
			t.Errorf("%s: health check %q checks nothing", s.Name, h.Test)
		case h.Interval == nil || h.Timeout == nil || h.StartPeriod == nil || h.Retries == nil || *h.Retries < 1:
			t.Errorf("%s: health check lacks one of interval, timeout, start_period, retries", s.Name)
		case s.Restart != "unless-stopped":
			t.Errorf("%s: restart is %q, want unless-stopped", s.Name, s.Restart)
		case ours(s) && h.Test[0] != "CMD":
			t.Errorf("%s: health check %q needs a shell, which the image has not", s.Name, h.Test)
		}
	}
}

func TestOrderOfStart(t *testing.T) {
	t.Parallel()
	p := compose(t, nil)
	want := map[string][]string{
		"orchestrator-1": {"migrate", "postgres", "redis"}, "orchestrator-2": {"migrate", "postgres", "redis"},
		"migrate": {"postgres"}, "worker": {"redis"},
	}
	for _, s := range services(p) {
		if got := slices.Sorted(maps.Keys(s.DependsOn)); !slices.Equal(got, want[s.Name]) {
			t.Errorf("%s: depends on %q, want %q", s.Name, got, want[s.Name])
		}
		for on, d := range s.DependsOn {
			to := p.Services[on]
			switch d.Condition {
			case types.ServiceConditionHealthy:
				if to.HealthCheck == nil {
					t.Errorf("%s: waits until %s is healthy, which has no health check", s.Name, on)
				}
			case types.ServiceConditionCompletedSuccessfully:
				if to.Restart != "no" || to.HealthCheck != nil {
					t.Errorf("%s: waits until %s has ended, which is no one-shot service", s.Name, on)
				}
			default:
				t.Errorf("%s: condition for %s is %q, which waits for nothing", s.Name, on, d.Condition)
			}
		}
	}
}

func TestWorkerScales(t *testing.T) {
	t.Parallel()
	for workers, want := range map[string]int{"": 2, "5": 5} {
		s := compose(t, map[string]string{"WORKERS": workers}).Services["worker"]
		if s.GetScale() != want {
			t.Errorf("WORKERS=%q: %d workers, want %d", workers, s.GetScale(), want)
		}
		if s.ContainerName != "" || s.Hostname != "" || len(s.Ports) > 0 || len(s.Volumes) > 0 {
			t.Errorf("worker: has a fixed name, a port or a volume, which several containers can't share: %q %q %v %v",
				s.ContainerName, s.Hostname, s.Ports, s.Volumes)
		}
	}
	for _, s := range services(compose(t, nil)) {
		if s.ContainerName != "" {
			t.Errorf("%s: container_name %q keeps a second project from the host", s.Name, s.ContainerName)
		}
	}
}

func TestNetworks(t *testing.T) {
	t.Parallel()
	p := compose(t, nil)
	want := map[string][]string{
		"postgres": {"postgres"}, "redis": {"redis"}, "migrate": {"postgres"}, "dlq-replay": {"rpc"},
		"worker": {"egress", "redis", "rpc"}, "orchestrator-1": {"postgres", "redis", "rpc"}, "orchestrator-2": {"postgres", "redis", "rpc"},
	}
	for _, s := range services(p) {
		if got := slices.Sorted(maps.Keys(s.Networks)); !slices.Equal(got, want[s.Name]) {
			t.Errorf("%s: is in networks %q, want %q", s.Name, got, want[s.Name])
		}
		if isOrchestrator(s) && !slices.Contains(s.Networks["rpc"].Aliases, "orchestrator") {
			t.Errorf("%s: has no alias orchestrator in rpc, which dlq-replay uses", s.Name)
		}
		for name := range s.Networks {
			if isStore(s) && !p.Networks[name].Internal {
				t.Errorf("%s: network %s is not internal", s.Name, name)
			}
		}
	}
}

func TestConfinement(t *testing.T) {
	t.Parallel()
	for _, s := range services(compose(t, nil)) {
		if !s.ReadOnly {
			t.Errorf("%s: root file system is writable", s.Name)
		}
		if !slices.Equal(s.CapDrop, []string{"ALL"}) || len(s.CapAdd) > 0 {
			t.Errorf("%s: drops capabilities %q and adds %q, want ALL and none", s.Name, s.CapDrop, s.CapAdd)
		}
		if !slices.Contains(s.SecurityOpt, "no-new-privileges:true") {
			t.Errorf("%s: security_opt %q lacks no-new-privileges:true", s.Name, s.SecurityOpt)
		}
		// Our own image has a user; see TestDockerfile.
		if uid, _, _ := strings.Cut(s.User, ":"); !ours(s) && (uid == "" || uid == "0" || uid == "root") {
			t.Errorf("%s: runs as root", s.Name)
		}
		if s.Logging == nil || s.Logging.Options["max-size"] == "" || s.Logging.Options["max-file"] == "" {
			t.Errorf("%s: its log has no bound", s.Name)
		}
		if s.Deploy == nil || s.Deploy.Resources.Limits == nil || s.Deploy.Resources.Limits.MemoryBytes == 0 || s.Deploy.Resources.Limits.Pids == 0 {
			t.Errorf("%s: has no limit of memory or processes", s.Name)
		}
		for _, v := range s.Volumes {
			if v.Type != types.VolumeTypeVolume || !isStore(s) {
				t.Errorf("%s: mounts %s; only stores have volumes, and nothing mounts the host's directories", s.Name, v.Source)
			}
		}
		if isStore(s) && len(s.Volumes) != 1 {
			t.Errorf("%s: keeps its data in %d volumes, want 1", s.Name, len(s.Volumes))
		}
	}
}

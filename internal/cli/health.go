package cli

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock-dev/penstock/internal/config"
)

// healthTimeout bounds a health check.
const healthTimeout = 4 * time.Second

// checkReady asks a process for /readyz; the error has what it answered.
func checkReady(ctx context.Context, base string, tls *tls.Config) error {
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(base, "/")+"/readyz", nil)
	if err != nil {
		return usage(err)
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: tls}}
	defer client.CloseIdleConnections()
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(io.LimitReader(res.Body, 1<<10))
		return fmt.Errorf("not ready: %s %s", res.Status, strings.TrimSpace(string(b)))
	}
	return nil
}

func orchestratorHealthCmd() *cobra.Command {
	c := &cobra.Command{
		Use: "health", Short: "Ask an orchestrator whether it is ready; exit code 1 if not", Args: args(cobra.NoArgs),
		Long: "Ask an orchestrator whether it is ready to serve. Meant for container health checks, where there is\nno shell and no curl.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, _, err := config.LoadClient("", cmd.Flags())
			if err != nil {
				return usage(err)
			}
			tls, err := cfg.TLS.Files().Config()
			if err != nil {
				return usage(fmt.Errorf("tls: %w", err))
			}
			return checkReady(cmd.Context(), cfg.Server, tls)
		},
	}
	config.AddFlags(c.Flags(), config.DefaultClient())
	return c
}

func workerHealthCmd() *cobra.Command {
	c := &cobra.Command{
		Use: "health", Short: "Ask a worker on this host whether it is ready; exit code 1 if not", Args: args(cobra.NoArgs),
		Long: "Ask the worker that listens on health_listen whether it is fetching from Redis.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, _, err := config.LoadWorker(configFile(cmd), cmd.Flags())
			if err != nil {
				return usage(err)
			}
			host, port, err := net.SplitHostPort(cfg.HealthListen)
			if err != nil {
				return usage(errors.New("health_listen is not set: the worker has no health port"))
			}
			if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
				host = "127.0.0.1"
			}
			return checkReady(cmd.Context(), "http://"+net.JoinHostPort(host, port), nil)
		},
	}
	config.AddFlags(c.Flags(), config.DefaultWorker())
	return c
}

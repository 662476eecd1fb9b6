package cli

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock-dev/penstock/internal/auth"
)

func tokenCmd() *cobra.Command {
	c := &cobra.Command{
		Use: "token", Short: "Make tokens and check the file of them; see auth.tokens_file",
		Long: "Make tokens for the people and programs that call, and check the file that holds them\n" +
			"(auth.tokens_file). Nothing here talks to an orchestrator.",
	}
	c.AddCommand(tokenCreateCmd(), tokenHashCmd(), tokenCheckCmd())
	return c
}

func tokenCreateCmd() *cobra.Command {
	var roles, tenants []string
	var expires string
	c := &cobra.Command{
		Use: "create NAME", Short: "Make a token and the line for the tokens file", Args: args(cobra.ExactArgs(1)),
		Long: `Make a random token for a principal. It is printed on standard output, this once,
with the line for the tokens file, which holds its hash only. With --token-out
the token goes to a new file, which only you can read, and only the line is
printed: orchestrator token create alice --roles viewer --token-out alice.token >> tokens`,
		RunE: func(cmd *cobra.Command, a []string) error {
			file, _ := cmd.Flags().GetString("token-out")
			token, line, err := newToken(a[0], roles, tenants, expires)
			if err != nil {
				return usage(err)
			}
			if file == "" {
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "token:  %s\nline:   %s", token, line)
				return err
			}
			f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(f, token)
			if err := errors.Join(err, f.Close()); err != nil {
				return err
			}
			_, err = io.WriteString(cmd.OutOrStdout(), line)
			return err
		},
	}
	c.Flags().StringSliceVar(&roles, "roles", nil, "what it may do, separated by commas: "+strings.Join(auth.AllRoles(), ", "))
	c.Flags().StringSliceVar(&tenants, "tenants", nil, "the tenants that it is bound to, separated by commas (default: every tenant)")
	c.Flags().StringVar(&expires, "expires", "", "when it expires, RFC 3339 with an offset, such as 2027-03-31T18:00:00+02:00")
	c.Flags().String("token-out", "", "new file for the token")
	return c
}

// newToken makes a token and the line that makes it count.
func newToken(name string, roles, tenants []string, expires string) (token, line string, err error) {
	if err := auth.CheckName(name); err != nil {
		return "", "", err
	}
	if len(roles) == 0 {
		return "", "", fmt.Errorf("--roles is required: a token without roles may call nothing; roles are %s", strings.Join(auth.AllRoles(), ", "))
	}
	sorted, err := auth.ParseRoles(roles)
	if err != nil {
		return "", "", fmt.Errorf("--roles: %w", err)
	}
	attributes := "roles=" + strings.Join(sorted, ",")
	if len(tenants) > 0 {
		bound, err := auth.ParseTenants(tenants)
		if err != nil {
			return "", "", fmt.Errorf("--tenants: %w", err)
		}
		if bound != nil && slices.Contains(sorted, auth.RoleAdmin) {
			return "", "", fmt.Errorf("--tenants: the role %s is about every tenant", auth.RoleAdmin)
		}
		if bound != nil {
			attributes += " tenants=" + strings.Join(bound, ",")
		}
	}
	if expires != "" {
		at, err := auth.ParseExpiry(expires)
		if err != nil {
			return "", "", fmt.Errorf("--expires: %w", err)
		}
		if !at.After(time.Now()) {
			return "", "", fmt.Errorf("--expires is %s, which is over", expires)
		}
		attributes += " expires=" + expires
	}
	token = auth.NewToken()
	return token, auth.LineOf(name, token, attributes), nil
}

func tokenHashCmd() *cobra.Command {
	return &cobra.Command{
		Use: "hash", Short: "Print the hash of a token read from standard input", Args: args(cobra.NoArgs),
		Long: "Read a token, one line, from standard input and print what may stand for it in a tokens file.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			line, err := bufio.NewReader(io.LimitReader(cmd.InOrStdin(), 4096)).ReadString('\n')
			if err != nil && !errors.Is(err, io.EOF) {
				return err
			}
			token := strings.TrimSpace(line)
			if err := auth.CheckToken(token); err != nil {
				return usage(err)
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), auth.Hash(token))
			return err
		},
	}
}

func tokenCheckCmd() *cobra.Command {
	return &cobra.Command{
		Use: "check FILE", Short: "Check a tokens file", Args: args(cobra.ExactArgs(1)),
		Long: "Check that a tokens file can be used, and list who is in it: never a token. Exit code 2 if not.",
		RunE: func(cmd *cobra.Command, a []string) error {
			tokens, err := auth.ReadFile(a[0])
			if err != nil {
				return usage(err)
			}
			w := cmd.OutOrStdout()
			now := time.Now()
			for _, l := range tokens.Lines() {
				note := ""
				switch {
				case !l.Expires.IsZero() && !now.Before(l.Expires):
					note = "  EXPIRED"
				case len(l.Roles) == 0:
					note = "  MAY CALL NOTHING: add roles=ROLE,…"
				}
				roles, expires := strings.Join(l.Roles, ","), "never"
				if roles == "" {
					roles = "-"
				}
				if !l.Expires.IsZero() {
					expires = l.Expires.Format(time.RFC3339)
				}
				tenants := "*"
				if l.Tenants != nil {
					tenants = strings.Join(l.Tenants, ",")
				}
				if l.Certificate != "" {
					note = "  certificate " + l.Certificate + note
				}
				if _, err := fmt.Fprintf(w, "%-24s  %-32s  tenants %-16s  expires %s%s\n", l.Name, roles, tenants, expires, note); err != nil {
					return err
				}
			}
			_, err = fmt.Fprintf(w, "%d tokens\n", tokens.Len())
			return err
		},
	}
}

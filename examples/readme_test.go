// Package examples holds the programs that the README shows.
package examples

import (
	"os"
	"strings"
	"testing"
)

// The README quotes these files from their import clause on; the build of this
// folder is the proof that what it quotes compiles.
func TestReadmeQuotesExamples(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"mail/mail.go", "worker/main.go", "enqueue/main.go", "once/once.go"} {
		src, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		_, body, _ := strings.Cut(string(src), "\npackage ")
		_, body, _ = strings.Cut(body, "\n\n") // after the package clause
		if !strings.Contains(string(readme), "```go\n"+strings.TrimSpace(body)+"\n```") {
			t.Errorf("README.md does not quote examples/%s as it is", file)
		}
	}
	main, err := os.ReadFile("worker/main.go")
	if err != nil {
		t.Fatal(err)
	}
	_, body, _ := strings.Cut(string(main), "func main() {")
	if n := strings.Count(body, "\n"); n > 20 {
		t.Errorf("the example worker's main has %d lines, the README promises 20", n)
	}
}

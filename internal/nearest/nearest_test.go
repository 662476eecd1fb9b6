package nearest

import (
	"slices"
	"testing"
)

func TestDistance(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"abc", "", 3}, {"", "abc", 3}, {"kitten", "sitting", 3}, {"window", "windwo", 2}, {"a", "a", 0}} {
		if got := Distance(tt.a, tt.b); got != tt.want {
			t.Errorf("Distance(%q, %q) = %d, want %d", tt.a, tt.b, got, tt.want)
		}
	}
}

func TestAmong(t *testing.T) {
	t.Parallel()
	all := []string{"mail", "mails", "import", "default", "nail"}
	for name, want := range map[string][]string{
		"mial": {"mail"}, "mailss": {"mails", "mail"}, "defualt": {"default"}, "billing": nil, "mail": {"mail", "mails", "nail"},
	} {
		if got := Among(name, all, 3); !slices.Equal(got, want) {
			t.Errorf("Among(%q) = %v, want %v", name, got, want)
		}
	}
	if got := Among("mail", all, 1); !slices.Equal(got, []string{"mail"}) {
		t.Errorf("one of them: %v", got)
	}
}

package pipelines

import (
	"fmt"
	"log/slog"
	"os"
	"strings"
)

// Secret is a setting that may name environment variables as ${NAME} ($${
// stands for ${ itself). They are read when the secret is used, not when the
// file is parsed: an agent's host need not know the warehouse's password.
// Printing or logging a Secret never shows its value.
type Secret struct{ source string }

// NewSecret makes a Secret of a literal with optional ${NAME} references.
func NewSecret(source string) Secret { return Secret{source: source} }

// IsZero says that nothing was set.
func (s Secret) IsZero() bool { return s.source == "" }

// Reveal returns the value. A variable that is not set is an error.
func (s Secret) Reveal() (string, error) { return s.expand(os.LookupEnv) }

// String hides the value.
func (s Secret) String() string {
	if s.source == "" {
		return ""
	}
	return "[secret]"
}

// GoString hides the value from %#v.
func (s Secret) GoString() string { return "pipelines.Secret{}" }

// LogValue hides the value from slog.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

func (s Secret) expand(lookup func(string) (string, bool)) (string, error) {
	var out strings.Builder
	rest := s.source
	for {
		i := strings.Index(rest, "${")
		if i < 0 {
			out.WriteString(rest)
			return out.String(), nil
		}
		if i > 0 && rest[i-1] == '$' {
			out.WriteString(rest[:i-1] + "${")
			rest = rest[i+2:]
			continue
		}
		name, after, ok := strings.Cut(rest[i+2:], "}")
		if !ok || name == "" {
			return "", fmt.Errorf("a ${ without a name and }")
		}
		value, ok := lookup(name)
		if !ok {
			return "", fmt.Errorf("environment variable %s is not set", name)
		}
		out.WriteString(rest[:i] + value)
		rest = after
	}
}

package broker

import (
	"fmt"
	"os"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/sluice-io/sluice/broker/cluster"
)

// ConfigError is a mistake in a configuration file, with its place.
type ConfigError struct {
	File         string
	Line, Column int // from 1
	Message      string
}

func (e *ConfigError) Error() string {
	return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Column, e.Message)
}

// LoadConfig reads a configuration file: one YAML mapping of Kafka's property
// names to values, checked strictly. Mistakes are [*ConfigError].
func LoadConfig(path string) (Config, error) {
	src, err := os.ReadFile(path)
	if err != nil {
		return Config{}, fmt.Errorf("read configuration: %w", err)
	}
	return ParseConfig(path, src)
}

// ParseConfig is LoadConfig over the content of a file of that name.
func ParseConfig(name string, src []byte) (Config, error) {
	var cfg Config
	f, err := parser.ParseBytes(src, 0)
	if err != nil {
		return cfg, syntaxError(name, err)
	}
	if len(f.Docs) == 0 || f.Docs[0].Body == nil {
		return cfg, nil // all defaults
	}
	if len(f.Docs) > 1 && f.Docs[1].Body != nil {
		return cfg, at(name, f.Docs[1].Body.GetToken(), "a broker's configuration is one document")
	}
	pairs, err := mapping(name, f.Docs[0].Body)
	if err != nil {
		return cfg, err
	}
	seen := map[string]bool{}
	for _, pair := range pairs {
		key := pair.Key.GetToken()
		if seen[key.Value] {
			return cfg, at(name, key, fmt.Sprintf("%s is given twice", key.Value))
		}
		seen[key.Value] = true
		if err := cfg.setNode(name, pair); err != nil {
			return cfg, err
		}
	}
	return cfg, nil
}

func mapping(name string, body ast.Node) ([]*ast.MappingValueNode, error) {
	switch n := body.(type) {
	case *ast.MappingNode:
		return n.Values, nil
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{n}, nil
	case *ast.NullNode, *ast.CommentGroupNode:
		return nil, nil
	}
	return nil, at(name, body.GetToken(), "a broker's configuration is a mapping of properties to values, such as \"num.partitions: 3\"")
}

func (c *Config) setNode(file string, pair *ast.MappingValueNode) error {
	key := pair.Key.GetToken()
	value, err := scalar(file, key.Value, pair.Value)
	if err != nil {
		return err
	}
	known, err := c.setProperty(key.Value, value)
	switch {
	case !known:
		return at(file, key, fmt.Sprintf("unknown property %q%s", key.Value, suggestion(key.Value)))
	case err != nil:
		return at(file, pair.Value.GetToken(), fmt.Sprintf("%s: %v", key.Value, err))
	}
	return nil
}

// scalar is a value as the text that Kafka would have in its file; a sequence
// becomes a list between commas.
func scalar(file, key string, n ast.Node) (string, error) {
	switch v := n.(type) {
	case *ast.NullNode:
		return "", at(file, n.GetToken(), key+" has no value")
	case *ast.SequenceNode:
		var words []string
		for _, item := range v.Values {
			word, err := scalar(file, key, item)
			if err != nil {
				return "", err
			}
			words = append(words, word)
		}
		return strings.Join(words, ","), nil
	case *ast.LiteralNode:
		return strings.TrimSpace(v.Value.Value), nil
	case ast.ScalarNode:
		return n.GetToken().Value, nil
	}
	return "", at(file, n.GetToken(), key+" must be a single value; properties are written flat, with dots: \""+key+": VALUE\"")
}

func at(file string, t *token.Token, message string) error {
	e := &ConfigError{File: file, Line: 1, Column: 1, Message: message}
	if t != nil && t.Position != nil {
		e.Line, e.Column = t.Position.Line, t.Position.Column
	}
	return e
}

// syntaxError takes the place out of the parser's error.
func syntaxError(file string, err error) error {
	e := &ConfigError{File: file, Line: 1, Column: 1, Message: err.Error()}
	text := strings.SplitN(err.Error(), "\n", 2)[0]
	if n, _ := fmt.Sscanf(text, "[%d:%d]", &e.Line, &e.Column); n == 2 {
		e.Message = strings.TrimSpace(text[strings.IndexByte(text, ']')+1:])
	}
	return e
}

func suggestion(name string) string {
	if closest := cluster.ClosestName(name, PropertyNames()); closest != "" {
		return fmt.Sprintf(", did you mean %q?", closest)
	}
	return ""
}

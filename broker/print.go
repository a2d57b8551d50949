package broker

import (
	"bytes"
	"fmt"
	"io"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/sluice-io/sluice/broker/api"
	"github.com/sluice-io/sluice/broker/cluster"
)

// Print writes the configuration that is in force at a start, each property with
// where it comes from, as a file that [ParseConfig] reads. A property without a
// value is a comment. What was set while the broker ran is in its cluster store,
// not here.
func (c Config) Print(w io.Writer) error {
	var out bytes.Buffer
	for _, p := range c.Properties() {
		if p.DynamicOnly() {
			continue
		}
		if p.Secret && p.Static != nil {
			fmt.Fprintf(&out, "# %s: # set, and not shown\n", p.Name)
			continue
		}
		value, source := p.Default, "default"
		if p.Static != nil {
			value, source = p.Static, c.sourceOf(p.Name)
		}
		if value == nil {
			fmt.Fprintf(&out, "# %s:%s\n", p.Name, without(p))
			continue
		}
		text, err := yamlValue(p.Type, *value)
		if err != nil {
			return fmt.Errorf("print %s: %w", p.Name, err)
		}
		fmt.Fprintf(&out, "%s: %s # %s\n", p.Name, text, source)
	}
	_, err := w.Write(out.Bytes())
	return err
}

func (c Config) sourceOf(name string) string {
	switch {
	case c.flags[name]:
		return "command line"
	case c.set[name] || c.TopicDefaults[name] != "":
		return "configuration file"
	}
	return "set by the program"
}

// without says what stands for a property that has no value.
func without(p api.Property) string {
	if len(p.Synonyms) > 1 {
		return " # not set, " + p.Synonyms[len(p.Synonyms)-1] + " counts"
	}
	return " # not set"
}

// yamlValue quotes what needs to be; numbers and booleans are as they are.
func yamlValue(typ cluster.ConfigType, value string) (string, error) {
	if typ != cluster.ConfigString && typ != cluster.ConfigList {
		return value, nil
	}
	text, err := yaml.Marshal(value)
	return strings.TrimSpace(string(text)), err
}

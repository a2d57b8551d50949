package agent

import (
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-io/sluice/pipelines"
)

// inputFields are the settings that a row of the table is about, by the names that the inputs' types have for them.
var inputFields = map[string][]string{
	"start position": {"StartAt"}, "include, exclude": {"Include", "Exclude", "Symlinks", "Container", "Path", "Command", "Listen", "Units", "Matches", "Boot"},
	"ignore older": {"IgnoreOlder"}, "encoding": {"Encoding", "InvalidUTF8"}, "several lines": {"Multiline"}, "line limit": {"LineBytesMax"},
	"rate limit": {"RateLimit"}, "headers": {"Headers"},
}

// notChoosing are fields that do not choose what is read, though other inputs' fields of the name do.
var notChoosing = map[string][]string{"journald": {"Command"}}

var camel = regexp.MustCompile(`([a-z0-9])([A-Z])`)

// settingOf is a field's key in a pipeline file.
func settingOf(field string) string {
	if field == "InvalidUTF8" {
		return "invalid_utf8"
	}
	return strings.ToLower(camel.ReplaceAllString(field, "${1}_${2}"))
}

// The table of what each input can be told says what the inputs' types have, and nothing else.
func TestTableOfInputs(t *testing.T) {
	text, err := os.ReadFile("../docs/agent.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, ok := strings.Cut(string(text), "## What each input can be told\n")
	if !ok {
		t.Fatal("there is no table")
	}
	rows := map[string][]string{}
	for line := range strings.Lines(table) {
		if strings.HasPrefix(line, "|-") {
			continue
		}
		if !strings.HasPrefix(line, "| ") {
			break
		}
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "| "), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		rows[cells[0]] = cells[1:]
	}
	collect := reflect.TypeFor[pipelines.Collect]()
	var inputs []string
	for i := range collect.NumField() {
		if f := collect.Field(i); f.Type.Kind() == reflect.Pointer {
			inputs = append(inputs, strings.ToLower(f.Name))
		}
	}
	if want := "`" + strings.Join(inputs, "` `") + "`"; strings.Join(rows["setting"], " ") != want {
		t.Fatalf("the inputs are %q, want %s", rows["setting"], want)
	}
	for row, fields := range inputFields {
		for i, input := range inputs {
			typ, _ := collect.FieldByNameFunc(func(name string) bool { return strings.ToLower(name) == input })
			var have []string
			for _, f := range fields {
				if _, ok := typ.Type.Elem().FieldByName(f); ok && !slices.Contains(notChoosing[input], f) {
					have = append(have, "`"+settingOf(f)+"`")
				}
			}
			got := strings.Split(rows[row][i], ", ")
			if len(have) == 0 {
				have = []string{"-"}
			}
			slices.Sort(got)
			slices.Sort(have)
			if !slices.Equal(got, have) {
				t.Errorf("%s of %s: the table has %q, the input %q", row, input, got, have)
			}
		}
	}
	for i := range inputs {
		if rows["labels"][i] != "`labels`" {
			t.Errorf("labels of %s: %s", inputs[i], rows["labels"][i])
		}
	}
}

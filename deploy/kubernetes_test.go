package deploy

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	rbac "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"github.com/sluice-io/sluice/internal/testenv"
	"github.com/sluice-io/sluice/pipelines"
)

// manifest finds an object of a kind in a file and reads it strictly: a key that Kubernetes does not know is an error.
func manifest[T any](t *testing.T, file, kind string) *T {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, doc := range bytes.Split(text, []byte("\n---\n")) {
		if !bytes.Contains(doc, []byte("\nkind: "+kind+"\n")) {
			continue
		}
		out := new(T)
		if err := yaml.UnmarshalStrict(doc, out); err != nil {
			t.Fatalf("%s: %s: %v", file, kind, err)
		}
		return out
	}
	t.Fatalf("%s has no %s", file, kind)
	return nil
}

// The manifests are what Kubernetes takes, the parts fit each other, and the agent takes its flags and its pipeline.
func TestAgentInKubernetes(t *testing.T) {
	const file = "kubernetes/agent.yaml"
	account := manifest[core.ServiceAccount](t, file, "ServiceAccount")
	role := manifest[rbac.ClusterRole](t, file, "ClusterRole")
	binding := manifest[rbac.ClusterRoleBinding](t, file, "ClusterRoleBinding")
	config := manifest[core.ConfigMap](t, file, "ConfigMap")
	set := manifest[apps.DaemonSet](t, file, "DaemonSet")

	if len(role.Rules) != 1 || !slices.Equal(role.Rules[0].Resources, []string{"pods"}) || !slices.Equal(role.Rules[0].Verbs, []string{"list", "watch"}) {
		t.Errorf("the role allows more, or less, than the agent needs: %+v", role.Rules)
	}
	if binding.RoleRef.Name != role.Name || binding.Subjects[0].Name != account.Name || binding.Subjects[0].Namespace != account.Namespace {
		t.Errorf("the binding: %+v", binding)
	}
	spec := set.Spec.Template.Spec
	if spec.ServiceAccountName != account.Name || set.Namespace != account.Namespace || config.Namespace != account.Namespace || len(spec.Containers) != 1 {
		t.Fatalf("the daemon set: %+v", spec)
	}
	for key, value := range set.Spec.Selector.MatchLabels {
		if set.Spec.Template.Labels[key] != value {
			t.Errorf("the template lacks the label %s", key)
		}
	}
	agent := spec.Containers[0]
	mounts := map[string]string{}
	for _, m := range agent.VolumeMounts {
		mounts[m.MountPath] = m.Name
	}
	for _, m := range mounts {
		if !slices.ContainsFunc(spec.Volumes, func(v core.Volume) bool { return v.Name == m }) {
			t.Errorf("there is no volume %s", m)
		}
	}
	if agent.Env[0].Name != "NODE_NAME" || agent.Env[0].ValueFrom.FieldRef.FieldPath != "spec.nodeName" {
		t.Errorf("environment %+v", agent.Env)
	}
	if s := agent.SecurityContext; *s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem || s.Capabilities.Drop[0] != "ALL" || len(s.Capabilities.Add) != 0 {
		t.Errorf("rights %+v", s)
	}
	if len(config.Data) == 0 {
		t.Error("no pipeline")
	}
	dir := t.TempDir()
	for name, text := range config.Data {
		pipes, err := pipelines.Parse(name, []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		in := pipes[0].Collect.File
		if in.Container.Kubernetes == nil || !strings.HasPrefix(in.Include[0], "/var/log/pods/") || mounts["/var/log/pods"] == "" {
			t.Errorf("%s reads %q", name, in.Include)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if agent.Args[1] != "/etc/sluice" || mounts[agent.Args[1]] == "" || agent.Args[3] != "/var/lib/sluice-agent" || mounts[agent.Args[3]] == "" {
		t.Errorf("arguments %q", agent.Args)
	}
	// An unknown flag ends it with the usage; the state directory that cannot be made ends it otherwise.
	args := slices.Clone(agent.Args)
	args[1], args[3] = dir, filepath.Join(dir, "pods.yaml", "none")
	args[slices.Index(args, "--metrics")+1] = ""
	out, err := exec.CommandContext(t.Context(), testenv.Sluice(t), args...).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "make the state directory") {
		t.Errorf("%v: %s", err, out)
	}
}

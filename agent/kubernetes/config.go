package kubernetes

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"
)

// Config of a Pods.
type Config struct {
	// URL of the API server; "" means that of the cluster that this process runs in as a pod, with TokenFile and CAFile of its service account.
	URL string
	// TokenFile is read at each request; "" with a URL means none.
	TokenFile string
	// CAFile has the certificates (PEM) that the server's is checked by; "" with a URL means the system's.
	CAFile string
	// Node is whose pods are told; "" means NODE_NAME of the environment, else the host's name.
	Node string
	// Annotations says which annotations are kept; nil means none.
	Annotations func(key string) bool
	// Keep is how long a pod is remembered that was deleted; 0 means not at all.
	Keep time.Duration
	// PodsMax bounds the pods that are remembered; 0 means 1,000.
	PodsMax int

	// WatchFor is how long the server is asked to let a watch live, half of it at least; 0 means 10 min.
	WatchFor time.Duration
	// RequestTimeout bounds the wait for an answer's headers, and for a page of a list; 0 means 30 s.
	RequestTimeout time.Duration
	// BackoffMin and BackoffMax bound the pauses between attempts, which double, give or take a third; 0 means 1 s and 30 s.
	BackoffMin, BackoffMax time.Duration
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

const (
	podsMaxDefault        = 1000
	watchForDefault       = 10 * time.Minute
	requestTimeoutDefault = 30 * time.Second
	backoffMinDefault     = time.Second
	backoffMaxDefault     = 30 * time.Second
)

func (c Config) withDefaults() Config {
	c.PodsMax = cmp.Or(c.PodsMax, podsMaxDefault)
	c.WatchFor = cmp.Or(c.WatchFor, watchForDefault)
	c.RequestTimeout = cmp.Or(c.RequestTimeout, requestTimeoutDefault)
	c.BackoffMin = cmp.Or(c.BackoffMin, backoffMinDefault)
	c.BackoffMax = cmp.Or(c.BackoffMax, backoffMaxDefault)
	if c.Now == nil {
		c.Now = time.Now
	}
	return c
}

// serviceAccountDir is where a pod finds its service account.
const serviceAccountDir = "/var/run/secrets/kubernetes.io/serviceaccount"

// resolved fills in what the environment tells.
func (c Config) resolved(env func(string) string) (Config, error) {
	if c.Node == "" {
		c.Node = env("NODE_NAME")
	}
	if c.Node == "" {
		host, err := os.Hostname()
		if err != nil {
			return c, fmt.Errorf("find out the node's name (kubernetes.node): %w", err)
		}
		c.Node = host
	}
	if c.URL != "" {
		return c, nil
	}
	host, port := env("KUBERNETES_SERVICE_HOST"), env("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return c, errors.New("KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set, so this is no pod: name the API server (kubernetes.url)")
	}
	c.URL = "https://" + net.JoinHostPort(host, port)
	c.TokenFile = cmp.Or(c.TokenFile, filepath.Join(serviceAccountDir, "token"))
	c.CAFile = cmp.Or(c.CAFile, filepath.Join(serviceAccountDir, "ca.crt"))
	return c, nil
}

package cluster

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// silent has pods and policies come and go for half a minute. In normal work Manx has no notice, and logs nothing above
// info.
func (w *World) silent() error {
	since := time.Now().UTC().Format(time.RFC3339)
	for i, end := 0, time.Now().Add(30*time.Second); time.Now().Before(end); i++ {
		name := fmt.Sprintf("passing-%d", i)
		if err := w.Apply(plainPod(name, w.Workers[i%len(w.Workers)].Name)); err != nil {
			return err
		}
		if err := w.Apply(closed); err != nil {
			return err
		}
		if _, err := w.Kubectl("wait", "--for=condition=Ready", "--timeout=120s", "pod/"+name); err != nil {
			return err
		}
		if _, err := w.Kubectl("delete", "--grace-period=1", "--timeout=120s", "pod/"+name,
			"networkpolicy/closed"); err != nil {
			return err
		}
	}
	for _, n := range w.Workers {
		status, err := w.manxd(n.Name, "/manxctl", "status")
		if err != nil {
			return err
		}
		if strings.Contains(status, "\nNotice:") {
			return fmt.Errorf("%s has notices:\n%s", n.Name, status)
		}
	}
	for _, app := range []string{"manx-node", "manx-controllers"} {
		log, err := w.Kubectl("logs", "-n", namespace, "-l", "k8s-app="+app, "--since-time="+since, "--tail=-1")
		if err != nil {
			return err
		}
		// The nodes log each pod; the controllers may have nothing to log.
		if app == "manx-node" && !strings.Contains(log, `"msg":"attached"`) {
			return fmt.Errorf("the log of %s lacks the pods that came:\n%s", app, log)
		}
		if err := quiet(app, log); err != nil {
			return err
		}
	}
	return nil
}

// quiet returns an error that names the lines of a log above info.
func quiet(who, log string) error {
	var loud []string
	for line := range strings.Lines(log) {
		var entry struct{ Level string }
		if err := json.Unmarshal([]byte(line), &entry); err != nil || entry.Level != "info" && entry.Level != "debug" {
			loud = append(loud, line)
		}
	}
	if len(loud) > 0 {
		return fmt.Errorf("in normal work %s logs %d lines above info:\n%s", who, len(loud), strings.Join(loud, ""))
	}
	return nil
}

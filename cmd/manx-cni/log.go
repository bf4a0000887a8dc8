package main

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/manxnet/manx/cni"
	"github.com/manxnet/manx/datastore/safefile"
)

// logLine writes a line of JSON to the log file of the network configuration, if there is one. manxd logs the rest.
func logLine(c *cni.Config, what string, fields ...any) {
	_, failed := findField(fields, "error")
	if c.LogFilePath == "" || c.LogLevel == "error" && !failed {
		return
	}
	line := map[string]any{"time": time.Now().Format(time.RFC3339Nano), "msg": what, "level": "info"}
	if failed {
		line["level"] = "error"
	}
	for i := 0; i+1 < len(fields); i += 2 {
		line[fmt.Sprint(fields[i])] = fields[i+1]
	}
	text, err := json.Marshal(line)
	if err != nil {
		return
	}
	log := safefile.NewLog(c.Log())
	_, _ = log.Write(append(text, '\n'))
}

func findField(fields []any, name string) (any, bool) {
	for i := 0; i+1 < len(fields); i += 2 {
		if fields[i] == name {
			return fields[i+1], true
		}
	}
	return nil, false
}

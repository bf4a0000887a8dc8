package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// version and commit are stamped by the build.
var (
	version = "dev"
	commit  = "unknown"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	c := &cli{in: os.Stdin, out: os.Stdout, err: os.Stderr, env: os.Getenv, plugin: isPlugin(os.Args[0])}
	var code int
	if program := calicoProgram(os.Args[0]); program != "" {
		code = c.runCalico(ctx, program, os.Args[1:], becomeProgram)
	} else {
		code = c.run(ctx, os.Args[1:])
	}
	stop()
	os.Exit(code)
}

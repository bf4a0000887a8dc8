package lab

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"time"

	hosts "github.com/manxnet/manx/integration/lab"
)

// limit bounds the duration of a command.
const limit = 5 * time.Minute

// run runs a program to its end, with that input, and returns its standard output. The error has its standard error.
func run(stdin io.Reader, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit*time.Duration(hosts.Patience()))
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &stdout, &stderr
	cmd.WaitDelay = time.Second
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%s %s: %w: %s%s", name, strings.Join(args, " "), err, stdout.Bytes(),
			bytes.TrimSpace(stderr.Bytes()))
	}
	return stdout.String(), nil
}

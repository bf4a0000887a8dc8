// Command manx-birdsock answers the commands of BIRD 1.6 that scripts and exporters send to its control socket, from
// the control API of manxd.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// version is set by the linker.
var version = "dev"

// biggestAnswer bounds the size of a response of manxd.
const biggestAnswer = 64 << 20

func main() {
	flags := pflag.NewFlagSet("manx-birdsock", pflag.ExitOnError)
	socket := flags.String("socket", "/var/run/calico/bird.ctl", "socket for IPv4; bird6.ctl beside it is for IPv6")
	manxd := flags.String("manxd", "/run/manx/manxd.sock", "control socket of manxd")
	show := flags.Bool("version", false, "print the version")
	flags.Parse(os.Args[1:]) //nolint:errcheck // ExitOnError
	if *show {
		fmt.Println(version)
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	if err := run(ctx, *socket, *manxd); err != nil {
		fmt.Fprintln(os.Stderr, "manx-birdsock:", err)
		os.Exit(1)
	}
}

// run serves the sockets that can be opened until ctx ends; it returns an error if none can. An entry in the way may
// belong to another program. manxd may start later, and end meanwhile: then clients get the reason.
func run(ctx context.Context, socket, manxd string) error {
	conn, err := dial(manxd)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // nothing is written any more
	tasks, serving := errgroup.WithContext(ctx)
	served := false
	for i, path := range []string{socket, socket6(socket)} {
		l, err := listen(path)
		if err != nil {
			fmt.Fprintln(os.Stderr, "manx-birdsock:", err)
			continue
		}
		served = true
		s := &server{manx: manxv1.NewManxClient(conn), version: version, ipv6: i == 1, now: time.Now,
			reading: make(chan struct{}, 1)}
		tasks.Go(func() error { return s.serve(serving, l) })
	}
	err = tasks.Wait()
	switch {
	case !served:
		return errors.New("no socket is served")
	case ctx.Err() != nil:
		return nil
	}
	return err
}

// dial prepares calls of manxd. While it does not run, a call fails at once, and the next attempt comes a second later.
func dial(socket string) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, path string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		}),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: time.Second, Multiplier: 1,
			Jitter: 0, MaxDelay: time.Second}, MinConnectTimeout: time.Second}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(biggestAnswer)))
}

// socket6 returns the path for IPv6: bird6.ctl for bird.ctl.
func socket6(path string) string {
	folder, name := filepath.Split(path)
	if rest, ok := strings.CutPrefix(name, "bird"); ok {
		return folder + "bird6" + rest
	}
	return path + "6"
}

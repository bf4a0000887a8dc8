package apiguard

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// UnixCredentials identify the caller of a service on a unix socket (SO_PEERCRED). The socket's mode decides on access.
func UnixCredentials() credentials.TransportCredentials {
	return unixCredentials{insecure.NewCredentials()}
}

type unixCredentials struct {
	credentials.TransportCredentials
}

// ServerHandshake returns the connection as it is.
func (unixCredentials) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return nil, nil, fmt.Errorf("%T is no connection of a unix socket", c)
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return nil, nil, err
	}
	var who *unix.Ucred
	ctlErr := raw.Control(func(fd uintptr) {
		who, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET,
			unix.SO_PEERCRED)
	})
	if err = errors.Join(ctlErr, err); err != nil {
		return nil, nil, fmt.Errorf("user of the connection: %w", err)
	}
	return c, Caller{UID: who.Uid, Process: func() (int, string) {
		name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", who.Pid))
		return int(who.Pid), strings.TrimSpace(string(name))
	}}, nil
}

// Clone returns the same credentials.
func (c unixCredentials) Clone() credentials.TransportCredentials { return c }

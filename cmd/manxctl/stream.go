package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/manxnet/manx/datastore/table"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// stream calls each with the daemon's messages until the daemon ends the stream or a person interrupts it, both its
// normal end.
func stream[M any](ctx context.Context, c *cli,
	open func(context.Context, manxv1.ManxClient) (grpc.ServerStreamingClient[M], error), each func(*M) error) error {
	err := c.daemonFor(ctx, 0, func(ctx context.Context, m manxv1.ManxClient) error {
		messages, err := open(ctx, m)
		if err != nil {
			return err
		}
		for {
			message, err := messages.Recv()
			if err == nil {
				err = each(message)
			}
			if err != nil {
				return err
			}
		}
	})
	if ctx.Err() != nil || errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// writeLine writes a message as one line of JSON, or as text for people.
func writeLine(w io.Writer, format table.Format, message protoreflect.ProtoMessage, text func() string) error {
	if format != table.JSON {
		_, err := fmt.Fprintln(w, text())
		return err
	}
	line, err := json.Marshal(view(message))
	if err == nil {
		_, err = fmt.Fprintf(w, "%s\n", line)
	}
	return err
}

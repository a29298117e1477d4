// A Go client of the gRPC port by Debian's grpc-go: what grpc_client.cc does, with streams in goroutines. clients_check.py
// judges what it prints.
//
//	grpc_client HOST:PORT CA-FILE|- PROMPT TOKENS
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	healthv1 "tandem/grpc/health/v1"
	reflection "tandem/grpc/reflection/v1alpha"
	tandem "tandem/v1"
)

var names = map[codes.Code]string{
	codes.OK: "OK", codes.Canceled: "CANCELLED", codes.DeadlineExceeded: "DEADLINE_EXCEEDED",
	codes.InvalidArgument: "INVALID_ARGUMENT", codes.Unavailable: "UNAVAILABLE", codes.Internal: "INTERNAL",
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "failed:", err)
		os.Exit(1)
	}
}

func dial(address, ca string) *grpc.ClientConn {
	security := grpc.WithInsecure()
	if ca != "-" {
		credential, err := credentials.NewClientTLSFromFile(ca, "")
		must(err)
		security = grpc.WithTransportCredentials(credential)
	}
	conn, err := grpc.Dial(address, security)
	must(err)
	return conn
}

func ask(prompt string, tokens uint32, temperature float32) *tandem.GenerateRequest {
	return &tandem.GenerateRequest{
		Input: &tandem.GenerateRequest_Text{Text: prompt},
		Sampling: &tandem.SamplingParams{
			Temperature_: &tandem.SamplingParams_Temperature{Temperature: temperature},
			MaxTokens_:   &tandem.SamplingParams_MaxTokens{MaxTokens: tokens},
			IgnoreEos:    true,
		},
	}
}

// The token ids of a whole answer, or of its first message; then the call is cancelled.
func generate(e tandem.EngineClient, r *tandem.GenerateRequest, wait time.Duration, leave bool) ([]int32, codes.Code) {
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	stream, err := e.Generate(ctx, r)
	must(err)
	var ids []int32
	for {
		m, err := stream.Recv()
		if err == io.EOF {
			return ids, codes.OK
		}
		if err != nil {
			return ids, status.Code(err)
		}
		ids = append(ids, m.GetDelta().GetTokenIds()...)
		if leave {
			cancel()
		}
	}
}

func checkHealth(conn *grpc.ClientConn) string {
	client := healthv1.NewHealthClient(conn)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	answer, err := client.Check(ctx, &healthv1.HealthCheckRequest{})
	must(err)
	watch, err := client.Watch(ctx, &healthv1.HealthCheckRequest{})
	must(err)
	seen, err := watch.Recv()
	must(err)
	if seen.Status != answer.Status {
		must(fmt.Errorf("Watch says %v, Check says %v", seen.Status, answer.Status))
	}
	return answer.Status.String()
}

func listServices(conn *grpc.ClientConn) (out []string) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	stream, err := reflection.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
	must(err)
	must(stream.Send(&reflection.ServerReflectionRequest{
		MessageRequest: &reflection.ServerReflectionRequest_ListServices{ListServices: "*"}}))
	answer, err := stream.Recv()
	must(err)
	must(stream.CloseSend())
	for _, s := range answer.GetListServicesResponse().GetService() {
		out = append(out, s.Name)
	}
	return out
}

func main() {
	tokens, err := strconv.Atoi(os.Args[4])
	must(err)
	conn := dial(os.Args[1], os.Args[2])
	engine := tandem.NewEngineClient(conn)
	request, endless := ask(os.Args[3], uint32(tokens), 0), ask(os.Args[3], 1500, 0)
	models, err := engine.ListModels(context.Background(), &tandem.ListModelsRequest{})
	must(err)
	ids, code := generate(engine, request, 30*time.Second, false)
	if code != codes.OK {
		must(fmt.Errorf("Generate: %v", code))
	}
	// This library sends a PING for each DATA that it gets: so many streams of one connection are many PINGs.
	const many = 64
	streams, together := make(chan []int32, many), make([][]int32, many)
	for i := 0; i < many; i++ {
		go func() {
			got, _ := generate(engine, request, 30*time.Second, false)
			streams <- got
		}()
	}
	for i := range together {
		together[i] = <-streams
	}
	_, left := generate(engine, endless, 30*time.Second, true)
	_, late := generate(engine, endless, 100*time.Millisecond, false)
	_, bad := generate(engine, ask(os.Args[3], 4, -1), 30*time.Second, false)
	must(json.NewEncoder(os.Stdout).Encode(map[string]interface{}{
		"health": checkHealth(conn), "services": listServices(conn), "model": models.Models[0].Id, "ids": ids,
		"async_ids": together, "cancel": names[left], "deadline": names[late], "bad": names[bad],
	}))
}

package api

import (
	"context"
	"encoding/hex"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/penstock-dev/penstock/internal/version"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// GetDeployment implements the RPC.
func (s *Service) GetDeployment(context.Context, *connect.Request[penstockv1.GetDeploymentRequest]) (*connect.Response[penstockv1.GetDeploymentResponse], error) {
	d := s.store.Deployment()
	return connect.NewResponse(&penstockv1.GetDeploymentResponse{
		DeploymentId: d.ID.String(), Seed: hex.EncodeToString(d.Seed), CreatedAt: timestamppb.New(d.CreatedAt), Version: version.String(),
	}), nil
}

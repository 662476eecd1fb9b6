package dependency

import "context"

// SettleEach is settle, for tests of what Run does between transactions.
func (s *Stage) SettleEach(ctx context.Context, each func() error) (int, error) {
	return s.settle(ctx, each)
}

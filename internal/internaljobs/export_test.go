package internaljobs

import "time"

// SetWait changes how long a call waits for a dead letter.
func (s *Service) SetWait(d time.Duration) { s.wait = d }

package volumes

func playUserNS() error { return nil }

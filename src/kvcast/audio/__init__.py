"""Turns audio into log-mel windows: decoding, resampling and features, in bounded memory."""

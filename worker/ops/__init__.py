"""Operations: logging, signals, health, doctor, janitor."""

// The program of host.c: its socket is descriptor 3, and the launcher's requests are its input.

int idealcard_host(int listener);

int main(void) { return idealcard_host(3); }

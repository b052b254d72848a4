// A minimal engine: requests a model from a daemon that does not exist, and prints the error.
#include <cstdio>

#include <tensorcast/client.h>

int main() {
  const auto client = tensorcast::client::Client::Connect(
      {.daemon = "unix:/nonexistent/tensorcast.sock", .connect_timeout = absl::Milliseconds(200)});
  if (client.ok()) return 1;
  std::printf("%s\n", client.status().ToString().c_str());
  return client.status().code() == absl::StatusCode::kUnavailable ? 0 : 1;
}

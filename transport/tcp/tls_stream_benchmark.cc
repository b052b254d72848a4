// What TLS costs a pull: the introduction of its two ends, by their certificates or by the session of a
// connection before, and each MiB. Both ends are on one thread, so the CPU time is that of both.
#include <sys/socket.h>

#include <array>
#include <memory>
#include <string>
#include <utility>

#include "absl/log/check.h"
#include "benchmark/benchmark.h"
#include "security/identity.h"
#include "security/testing/test_authority.h"
#include "transport/tcp/byte_stream.h"

namespace tensorcast::transport::tcp {
namespace {

struct Ends {
  std::unique_ptr<ByteStream> client;
  std::unique_ptr<ByteStream> server;
};

size_t ReadSome(ByteStream& stream, std::string& room) {
  const iovec part = {room.data(), room.size()};
  return stream.Read({&part, 1}).value();
}

class Nodes {
 public:
  // The client has the ticket of this connection, too.
  Ends Introduce(const TlsSession& session) const {
    std::array<int, 2> sockets{};
    PCHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sockets.data()) == 0);
    UniqueFd a(sockets[0]), b(sockets[1]);
    Ends ends{
        .client = NewTlsClientStream(std::move(a), client_, server_->self().name.ToString(), session).value(),
        .server = NewTlsServerStream(std::move(b), server_).value()};
    std::string room(1, '\0');
    while (ends.client->peer().empty() || ends.server->peer().empty()) {
      ReadSome(*ends.client, room);
      ReadSome(*ends.server, room);
    }
    ReadSome(*ends.client, room);
    return ends;
  }

 private:
  const security::testing::TestAuthority authority_;
  const std::shared_ptr<security::Identity> client_ = authority_.Load("node/a");
  const std::shared_ptr<security::Identity> server_ = authority_.Load("node/b");
};

void BM_IntroductionByCertificates(benchmark::State& state) {
  const Nodes nodes;
  for (auto _ : state) benchmark::DoNotOptimize(nodes.Introduce({}));
}
BENCHMARK(BM_IntroductionByCertificates)->Unit(benchmark::kMicrosecond);

void BM_IntroductionBySession(benchmark::State& state) {
  const Nodes nodes;
  const TlsSession session = nodes.Introduce({}).client->session();
  for (auto _ : state) benchmark::DoNotOptimize(nodes.Introduce(session));
}
BENCHMARK(BM_IntroductionBySession)->Unit(benchmark::kMicrosecond);

void BM_BytesThere(benchmark::State& state) {
  const Nodes nodes;
  const Ends ends = nodes.Introduce({});
  std::string sent(64 << 10, 'x');  // what the socket takes at once
  std::string room(sent.size(), '\0');
  for (auto _ : state) {
    const iovec part = {sent.data(), sent.size()};
    CHECK_EQ(ends.server->Write({&part, 1}).value(), sent.size());
    for (size_t received = 0; received < sent.size();) received += ReadSome(*ends.client, room);
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * sent.size()));
}
BENCHMARK(BM_BytesThere);

}  // namespace
}  // namespace tensorcast::transport::tcp

// How fast a pull is between two processes of this host: ucx_pull_benchmark [lane [MiB [rounds]]]
//
// Fetches 16 MiB chunks, eight in flight, and prints each round's rate and the processor time that this side
// took. Compare with `ucx_perftest -t ucp_am_bw -e -s 16777216` under UCX_TLS=tcp.
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>

#include "absl/log/check.h"
#include "absl/synchronization/notification.h"
#include "base/steady_time.h"
#include "transport/testing/source_process.h"
#include "transport/testing/test_image.h"
#include "transport/ucx/ucx_transport.h"

namespace tensorcast::transport {
namespace {

constexpr uint64_t kChunkBytes = uint64_t{16} << 20;
constexpr uint64_t kInFlight = 8;

std::unique_ptr<Transport> NewTransport(const std::string& lane) {
  UcxOptions options;
  options.lane = lane == "ucx-rma" ? UcxLane::kRma : UcxLane::kMessages;
  options.over_tcp = true;
  auto transport = UcxTransport::Create(options);
  CHECK_OK(transport.status());
  return *std::move(transport);
}

class Round {
 public:
  Round(Pull* pull, HostSpan destination) : pull_(pull), destination_(destination) {}

  void Run() {
    for (uint64_t i = 0; i < kInFlight; ++i) Next();
    done_.WaitForNotification();
  }

 private:
  // After the first calls, on the progress thread only.
  void Next() {
    const uint64_t offset = next_.fetch_add(kChunkBytes);
    if (offset >= destination_.size()) return;
    const uint64_t bytes = std::min<uint64_t>(kChunkBytes, destination_.size() - offset);
    pull_->Fetch(offset, {destination_.subspan(offset, bytes)}, SteadyTime::InfiniteFuture(),
                 [this, bytes](const FetchResult& result) {
                   CHECK_OK(result.status());
                   Next();
                   if (done_bytes_.fetch_add(bytes) + bytes == destination_.size()) done_.Notify();
                 });
  }

  Pull* const pull_;
  const HostSpan destination_;
  std::atomic<uint64_t> next_ = 0;
  std::atomic<uint64_t> done_bytes_ = 0;
  absl::Notification done_;
};

double ProcessorSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_utime.tv_sec + usage.ru_stime.tv_sec +
         (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

void Main(const std::string& lane, uint64_t image_bytes, int rounds) {
  auto source = SourceProcess::Start(lane, image_bytes);
  CHECK_OK(source.status());
  const std::unique_ptr<Transport> transport = NewTransport(lane);
  TestMemory memory(image_bytes);
  std::fill_n(memory.data(), memory.bytes(), std::byte{1});
  CHECK_OK(transport->RegisterMemory(memory.data(), memory.bytes()));
  auto pull = transport->Connect(RequestContext::Background(), (*source)->descriptor());
  CHECK_OK(pull.status());
  for (int i = 0; i < rounds; ++i) {
    const SteadyTime start = SteadyNow();
    const double processor = ProcessorSeconds();
    Round(pull->get(), memory.span(0, image_bytes)).Run();
    const double seconds = absl::ToDoubleSeconds(SteadyNow() - start);
    std::printf("%s: %llu MiB in %.3f s, %.2f GB/s, %.2f cores\n", lane.c_str(),
                static_cast<unsigned long long>(image_bytes >> 20), seconds, image_bytes / seconds / 1e9,
                (ProcessorSeconds() - processor) / seconds);
  }
  CHECK(HoldsPattern(memory.span(0, image_bytes), 0));
}

}  // namespace
}  // namespace tensorcast::transport

int main(int argc, char** argv) {
  using namespace tensorcast::transport;
  if (MaybeRunSourceProcess(argc, argv, NewTransport)) return 0;
  const uint64_t mib = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1024;
  Main(argc > 1 ? argv[1] : "ucx", mib << 20, argc > 3 ? std::atoi(argv[3]) : 5);
  return 0;
}

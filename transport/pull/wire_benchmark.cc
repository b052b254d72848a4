// Messages of the pull protocol: one request and one head of DATA for every piece.
#include "benchmark/benchmark.h"
#include "transport/pull/wire.h"

namespace tensorcast::transport::pull {
namespace {

void BM_EncodeAndDecodeRequest(benchmark::State& state) {
  const Frame request = Request{.id = 1234, .offset = uint64_t{5} << 30, .bytes = 4 << 20};
  for (auto _ : state) benchmark::DoNotOptimize(DecodeFrame(EncodeFrame(request)));
}
BENCHMARK(BM_EncodeAndDecodeRequest);

void BM_EncodeAndDecodeDataHead(benchmark::State& state) {
  const Frame head = Data{.request_id = 1234, .offset = uint64_t{5} << 30, .bytes = 256 << 10};
  for (auto _ : state) benchmark::DoNotOptimize(DecodeFrame(EncodeFrame(head)));
}
BENCHMARK(BM_EncodeAndDecodeDataHead);

}  // namespace
}  // namespace tensorcast::transport::pull

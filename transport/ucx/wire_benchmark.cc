// Messages of the pull protocol: one request and one data header for every piece.

#include <string>

#include "benchmark/benchmark.h"
#include "transport/ucx/wire.h"

namespace tensorcast::transport::wire {
namespace {

void BM_EncodeAndDecodeRequest(benchmark::State& state) {
  const Control request = Request{.id = 1234, .offset = uint64_t{5} << 30, .bytes = 4 << 20};
  for (auto _ : state) benchmark::DoNotOptimize(DecodeControl(EncodeControl(request)));
}
BENCHMARK(BM_EncodeAndDecodeRequest);

void BM_EncodeAndDecodeDataHeader(benchmark::State& state) {
  const DataHeader header{.request_id = 1234, .offset = uint64_t{5} << 30};
  for (auto _ : state) benchmark::DoNotOptimize(DecodeDataHeader(EncodeDataHeader(header)));
}
BENCHMARK(BM_EncodeAndDecodeDataHeader);

}  // namespace
}  // namespace tensorcast::transport::wire

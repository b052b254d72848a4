// Links, and flows over them with their shares of every link on their way, as in a switched network with fair
// flow control. Share sets the rates of all flows at once. Between two calls of it, a starting flow takes the
// spare rate of its links, and a stopping one gives its rate back.
//
// Shares are max-min fair: no flow can get more without taking from a flow that has no more than it. In each
// round Share fixes the flows of every link that is the narrowest link of all its flows. After kRounds rounds
// it gives each other flow the share of its narrowest link at that time. ExactRates is the reference to
// compare with.
//
// Thread-compatible.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace tensorcast::fan_out {

class Network {
 public:
  using Link = int32_t;
  using Flow = int32_t;
  static constexpr Link kNoLink = -1;
  using Way = std::array<Link, 4>;  // kNoLink in unused places

  Link AddLink(double bytes_per_second);
  // Adds a stopped flow.
  Flow AddFlow(const Way& way);
  void Start(Flow flow);
  void Stop(Flow flow);
  void Share();

  double rate(Flow flow) const { return flows_[flow].rate; }  // bytes per second
  const std::vector<Flow>& running() const { return running_; }

  // The rates of the running flows, in their order, computed by filling one link after another. Slow.
  std::vector<double> ExactRates() const;

 private:
  static constexpr int kRounds = 16;
  struct LinkState {
    double capacity = 0;
    double spare = 0;       // not used by any flow
    double unfixed = 0;     // flows not fixed yet, while Share runs
    double share = 0;       // of each unfixed flow
    bool narrowest = true;  // for all of its flows
  };
  struct FlowState {
    Way way;
    double rate = 0;
    int32_t place = -1;  // in running_; -1: stopped
    bool fixed = false;
  };
  template <typename Use>
  void ForLinks(const FlowState& flow, Use use) {
    for (const Link link : flow.way) {
      if (link != kNoLink) use(links_[link]);
    }
  }

  std::vector<LinkState> links_;
  std::vector<FlowState> flows_;
  std::vector<Flow> running_;
};

}  // namespace tensorcast::fan_out

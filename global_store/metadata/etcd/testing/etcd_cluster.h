// A real etcd for tests: its members are processes of this machine, on loopback addresses that belong to the
// test's process, and end with it. Compatible with one thread.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "global_store/metadata/etcd/client.h"

namespace tensorcast::global_store::etcd {

class EtcdCluster {
 public:
  // Starts them, and waits until the cluster answers. The folder holds their data and their logs; `flags` are
  // given to each of them as well. With an authority in `login` their clients' addresses are TLS, and it is
  // asked with that whether it answers.
  static absl::StatusOr<std::unique_ptr<EtcdCluster>> Start(const std::filesystem::path& folder,
                                                            int members = 1,
                                                            std::vector<std::string> flags = {},
                                                            ClientOptions login = {});
  ~EtcdCluster();

  // A loopback address that belongs to this test's process: stores that share etcd may listen there, too.
  static std::string Host();
  int members() const { return static_cast<int>(members_.size()); }
  // host:port of each member's clients.
  std::vector<std::string> endpoints() const;
  // Of its members, as they say themselves; UNAVAILABLE while none of them leads.
  absl::StatusOr<int> Leader() const;
  void Signal(int member, int signal) const;  // SIGSTOP, SIGCONT
  void Kill(int member);
  void Restart(int member);

 private:
  EtcdCluster(std::filesystem::path folder, int members, std::vector<std::string> flags, bool tls);
  void Spawn(int member);

  const std::filesystem::path folder_;
  const std::vector<std::string> flags_;
  const bool tls_;
  std::vector<pid_t> members_;  // 0: it does not run
};

}  // namespace tensorcast::global_store::etcd

// A real etcd for tests. Its members are processes of this machine, on loopback addresses reserved for the
// test's process, and end with it. For one thread.
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
  // Starts the members, and waits until the cluster answers. The folder holds their data and logs; each
  // member also gets `flags`. With an authority in `login`, the client addresses are TLS, and the wait uses
  // `login`.
  static absl::StatusOr<std::unique_ptr<EtcdCluster>> Start(const std::filesystem::path& folder,
                                                            int members = 1,
                                                            std::vector<std::string> flags = {},
                                                            ClientOptions login = {});
  ~EtcdCluster();

  // A loopback address reserved for this test's process; stores that share etcd may listen there too.
  static std::string Host();
  int members() const { return static_cast<int>(members_.size()); }
  // host:port for clients, by member.
  std::vector<std::string> endpoints() const;
  // The leading member, as the members say; UNAVAILABLE while none leads.
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
  std::vector<pid_t> members_;  // 0: the member does not run
};

}  // namespace tensorcast::global_store::etcd

// A text that must not leave the process by accident: a key or a token. A Secret cannot be compared or
// converted; only Reveal returns the text. A caller of Reveal must soon destroy all copies of the text (for
// example a header). The bytes are in pages that core files leave out (MADV_DONTDUMP), and are wiped when the
// last copy of the Secret is destroyed. Immutable; thread-safe.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace tensorcast::objects {

class Secret {
 public:
  Secret() = default;
  explicit Secret(std::string_view text);

  bool empty() const { return bytes_ == nullptr; }
  std::string_view Reveal() const;

  // In messages a Secret is shown as "[secret]".
  template <typename Sink>
  friend void AbslStringify(Sink& sink, const Secret&) {
    sink.Append("[secret]");
  }

 private:
  struct Bytes;
  std::shared_ptr<const Bytes> bytes_;
};

}  // namespace tensorcast::objects

//! What the library promises, checked on random problems. One binary, so that it links once.
#![allow(missing_docs, clippy::unwrap_used)]

mod apart;
mod architecture;
mod bad_input;
mod bracket;
mod checkpoints;
mod common;
mod deviation;
mod dial;
mod distributed;
mod examples;
mod fit;
mod golden;
mod gradients;
mod hostile;
mod hostile_tables;
mod identities;
mod learn;
mod lent;
mod lora;
mod rescale;
mod shapes;
mod streamed;
mod tables;
mod weights;
mod written;

//! A request for a MIG slice.

use berth_model::mig::{Board, Need, Profile, ProfileName};

/// On each board, at most one suitable profile.
///
/// A Kubernetes resource such as `nvidia.com/mig-3g.40gb` exists on several boards, and a need in
/// bytes is met by different profiles on different boards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SliceRequest {
    /// Ascending by the board's id; never empty.
    options: Vec<(&'static Board, &'static Profile)>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SliceRequestError {
    /// The profile is another board's, or the board's placements are unknown.
    #[error(
        "{profile} cannot be placed on board {board}; name a profile of a board whose placements \
         are known"
    )]
    NotPlaceable { profile: ProfileName, board: &'static str },
    #[error("board {board} has two profiles in one request; keep one of them")]
    BoardTwice { board: &'static str },
    #[error("no board with known placements offers {what:?}; name a MIG profile that one has")]
    Nowhere { what: String },
}

impl SliceRequest {
    /// This profile of this board only.
    pub fn profile(
        board: &'static Board,
        profile: &'static Profile,
    ) -> Result<Self, SliceRequestError> {
        Self::any([(board, profile)])
    }

    /// Any of these profiles, one per board.
    pub fn any(
        options: impl IntoIterator<Item = (&'static Board, &'static Profile)>,
    ) -> Result<Self, SliceRequestError> {
        let mut options: Vec<_> = options.into_iter().collect();
        for (board, profile) in &options {
            if board.share(profile).is_none() {
                let profile = profile.name();
                return Err(SliceRequestError::NotPlaceable { profile, board: board.id() });
            }
        }
        options.sort_by_key(|(board, _)| board.id());
        if let Some(pair) = options.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(SliceRequestError::BoardTwice { board: pair[0].0.id() });
        }
        if options.is_empty() {
            return Err(SliceRequestError::Nowhere { what: "nothing".to_owned() });
        }
        Ok(Self { options })
    }

    /// A Kubernetes resource such as `nvidia.com/mig-3g.40gb`, on every board that has it.
    pub fn resource(name: &str) -> Result<Self, SliceRequestError> {
        let options = Board::all().iter().filter_map(|board| {
            let profile = board.profile_by_resource(name).ok()?;
            board.share(profile).map(|_| (board, profile))
        });
        Self::any(options).map_err(|_| SliceRequestError::Nowhere { what: name.to_owned() })
    }

    /// The smallest slice that meets a need, on each of these boards that has one.
    pub fn need(
        need: &Need,
        boards: impl IntoIterator<Item = &'static Board>,
    ) -> Result<Self, SliceRequestError> {
        let options = boards.into_iter().filter_map(|board| {
            let profile = board.smallest(need)?;
            board.share(profile).map(|_| (board, profile))
        });
        Self::any(options).map_err(|error| match error {
            SliceRequestError::Nowhere { .. } => {
                SliceRequestError::Nowhere { what: format!("{need:?}") }
            }
            other => other,
        })
    }

    pub fn on(&self, board: &Board) -> Option<&'static Profile> {
        self.options.iter().find(|(b, _)| *b == board).map(|(_, profile)| *profile)
    }

    /// Boards with their profiles, ascending by id.
    pub fn options(&self) -> &[(&'static Board, &'static Profile)] {
        &self.options
    }
}
